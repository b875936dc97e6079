---
# What no module says about this role; the rest of meta/argument_specs.yml follows from its tasks. make docs
short_description: SAY IN A LINE WHAT IT DOES
description:
  - SAY WHAT IT WRITES, WHEN IT ENDS, AND BY WHAT IT IS PROVEN.
