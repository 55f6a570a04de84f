"""``python -m dpft.schemas``: writes the schemas anew, as the records have them."""

from dpft.files import write_text
from dpft.schemas import path_of
from dpft.schemas.generate import made_schemas, schema_text

if __name__ == "__main__":
    for name, schema in made_schemas().items():
        write_text(path_of(name), schema_text(schema))
