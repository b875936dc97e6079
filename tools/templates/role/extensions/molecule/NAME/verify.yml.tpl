---
- name: Verify NAME
  hosts: sandbox
  gather_facts: false
  tasks:
    - name: Look at the node
      kubernetes.core.k8s_info:
        kind: Node
        name: 10.140.0.1
      register: verify_node

    - name: It is as the role says
      ansible.builtin.assert:
        that:
          - verify_node.resources | length == 1
