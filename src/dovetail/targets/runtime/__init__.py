"""What targets share at run time.

`selection` is the table of kernel variants that each target fills. `backend` is the record that a target supplies,
`registry` the dataclasses that stored files may hold. From a plan to code: `building`. A call: `calls`. Memory:
`arrays`. Branches and loops: `control`.
"""
