# cython: language_level=3
"""Functions of Python as Lua calls them: what one raises refers to no frame.

An object of Lua belongs to the coroutine that passed it. The traceback of an error leads to the frames of all
callers, which hold such objects; lupa keeps the error, and would release them when their memory is gone. Compiled
code has no frame that leads to its callers.
"""
from ephemera.resp.replies import Refused


cdef class Called:
    """A function for scripts. It refuses with the words that `explain` finds for an error; `need` is asked
    for room for a result of bytes."""

    cdef object function
    cdef object explain
    cdef object need

    def __init__(self, function, explain, need):
        self.function = function
        self.explain = explain
        self.need = need

    def __call__(self, *arguments):
        try:
            result = self.function(*arguments)
            if isinstance(result, bytes):
                self.need(len(result))
            return result
        except Exception as error:
            words = self.explain(error)
            _forget_frames(error)
        raise Refused(words)


cdef _forget_frames(error):
    """Release everything that the functions held which an error passed through."""
    while error is not None:
        error.__traceback__, error = None, error.__context__
