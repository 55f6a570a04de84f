"""Everything that dpft writes down or prints as JSON: one frozen dataclass each, by subject.

``form`` says what a record is and reads and writes it; ``dpft.schemas`` has their JSON Schemas.
"""
