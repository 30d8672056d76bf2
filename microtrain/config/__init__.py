"""The configuration: YAML and keywords of Python, read, checked and shown."""
