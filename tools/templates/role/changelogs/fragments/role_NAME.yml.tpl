---
minor_changes:
  - Role NAME - SAY WHAT USERS GET.
