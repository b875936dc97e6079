---
galaxy_info:
  author: gpuops maintainers
  description: SAY IN A LINE WHAT IT DOES
  license: GPL-3.0-or-later
  min_ansible_version: "2.17"
  platforms:
    - name: GenericLinux
      versions: [all]
  galaxy_tags: [kubernetes, gpu, rdma, nccl]
dependencies: []
