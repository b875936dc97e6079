---
- name: Look at the nodes
  gpuops.rdma.node_info:
    nodes: "{{ NAME_nodes }}"
    label_selector: "{{ NAME_selector }}"
  register: NAME_result
