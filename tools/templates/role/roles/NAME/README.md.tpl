# gpuops.rdma.NAME

SAY IN TWO LINES WHAT IT DOES, WHEN IT ENDS, AND BY WHAT IT IS PROVEN.

```yaml
- ansible.builtin.include_role:
    name: gpuops.rdma.NAME
  vars:
    NAME_selector: oke.oraclecloud.com/pool.name=gpu
```

| variable | type | default | meaning |
|---|---|---|---|

Result: NAME_result: `summary`, `nodes`.
