"""The handlers of all commands, one module for each group; `table.declarations` loads every one."""
