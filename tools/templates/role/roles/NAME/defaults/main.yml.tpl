---
NAME_nodes: []
NAME_selector: ""
