"""The scripts that made ``model=tiny`` and its sample data, which dpft ships as files."""
