---
- name: Converge NAME
  hosts: sandbox
  gather_facts: false
  tasks:
    - name: Run the role NAME
      ansible.builtin.include_role:
        name: gpuops.rdma.NAME
      vars:
        NAME_nodes: [10.140.0.1]
