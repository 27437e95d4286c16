"""What the documentation site (mkdocs.yml) generates: pages of compressors, benchmarks and the API.

`hooks` is what MkDocs calls. Pages are made while the site is built, from contract tables,
docstrings and committed measurements; none of them is committed.
"""
