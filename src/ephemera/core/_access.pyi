class CompiledAccess:
    is_behind: bool
