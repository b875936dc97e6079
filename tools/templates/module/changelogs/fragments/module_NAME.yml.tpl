---
minor_changes:
  - Module NAME - SAY WHAT USERS GET.
