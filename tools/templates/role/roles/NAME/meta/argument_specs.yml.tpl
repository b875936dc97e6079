---
argument_specs:
  main:
    short_description: SAY IN A LINE WHAT IT DOES
    description:
      - SAY WHAT IT WRITES, WHEN IT ENDS, AND BY WHAT IT IS PROVEN.
    author:
      - gpuops maintainers
    options:
      NAME_nodes:
        type: list
        elements: str
        description: Only these nodes.
        default: []
      NAME_selector:
        type: str
        description: Only nodes with these labels.
        default: ""
