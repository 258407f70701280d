# cython: language_level=3, cdivision=True
"""What keeps scripts from taking the server with them: interrupts, room for Python, and bounds of Lua's own functions.

Interrupts. While scripts run, a thread of ours asks every few milliseconds for a hook before the next instruction
(`lua_sethook` is made for this: it stores a few words). So an interrupt comes after a time, however heavy the instructions
are, and a script that nobody interrupts pays nothing. The hook is in C: it needs neither a frame of Lua nor more of the C
stack, and runs wherever an instruction does. It looks at the time and at the memory, and enters Python only when the
script's slice is over or it holds too much. Once a script has to end, every instruction fails, so that no pcall goes on.
Only one call of C at a time is not interrupted; those whose cost is not bounded by what scripts can hold are bounded here,
in sandbox.lua and in patterns.lua.

    Invariant: `running` is the coroutine whose instructions run, or NULL between scripts; it changes under the mutex.
    Every way to resume a coroutine is `resume` below.

Functions of Python. lupa converts arguments and results inside Python, where a failed allocation of Lua jumps past the state
of Python, and its handles of Lua's objects refer to the coroutine that passed them, which may be collected before them. So
a function of Python is only called while the script holds no more than its limit, which is far below the
interpreter's, and always on the main coroutine, which outlives all handles. It raises nothing into Lua: it returns
whether it went well, and then its result or the text of its error, which becomes an error of Lua here.
"""
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uintptr_t
from libc.stdio cimport snprintf
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, strcmp

from ephemera.core._clock cimport elapsed_ns

from ephemera.core.errors import ResourcesExhausted

cdef extern from "<unistd.h>" nogil:
    int getpid()
    int usleep(unsigned int)

cdef extern from "<pthread.h>" nogil:
    ctypedef unsigned long pthread_t
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_create(pthread_t *, void *, void *(*)(void *) noexcept nogil, void *)
    int pthread_join(pthread_t, void **)
    int pthread_mutex_init(pthread_mutex_t *, void *)
    int pthread_mutex_lock(pthread_mutex_t *)
    int pthread_mutex_unlock(pthread_mutex_t *)

cdef extern from *:
    """
    extern void *memmem(const void *, size_t, const void *, size_t);
    """
    void *memmem(const void *, size_t, const void *, size_t) nogil

cdef extern from "_lua_api.h" nogil:
    ctypedef struct lua_State:
        pass
    ctypedef struct lua_Debug:
        const char *what
        const char *source
        int currentline
    ctypedef int (*lua_CFunction)(lua_State *) noexcept nogil
    ctypedef void (*lua_Hook)(lua_State *, lua_Debug *) noexcept nogil
    enum:
        LUA_REGISTRYINDEX
        LUA_GLOBALSINDEX
        LUA_MULTRET
        LUA_YIELD
        LUA_MASKCOUNT
        LUA_GCCOLLECT
        LUA_GCCOUNT
        LUA_TNIL
        LUA_TSTRING
        LUA_TTABLE
    const char *lua_find_functions(const char *)
    int lua_checkstack(lua_State *, int)
    void lua_createtable(lua_State *, int, int)
    int lua_error(lua_State *)
    int lua_gc(lua_State *, int, int)
    int lua_getinfo(lua_State *, const char *, lua_Debug *)
    int lua_getstack(lua_State *, int, lua_Debug *)
    int lua_gettop(lua_State *)
    void lua_insert(lua_State *, int)
    int lua_isnumber(lua_State *, int)
    void *lua_newuserdata(lua_State *, size_t)
    size_t lua_objlen(lua_State *, int)
    int lua_pcall(lua_State *, int, int, int)
    void lua_pushboolean(lua_State *, int)
    void lua_pushcclosure(lua_State *, lua_CFunction, int)
    void lua_pushlightuserdata(lua_State *, void *)
    void lua_pushlstring(lua_State *, const char *, size_t)
    void lua_pushnil(lua_State *)
    void lua_pushnumber(lua_State *, double)
    void lua_pushstring(lua_State *, const char *)
    void lua_pushvalue(lua_State *, int)
    void lua_rawget(lua_State *, int)
    void lua_rawset(lua_State *, int)
    void lua_remove(lua_State *, int)
    int lua_resume(lua_State *, int)
    void lua_setfield(lua_State *, int, const char *)
    int lua_sethook(lua_State *, lua_Hook, int, int)
    void lua_setlevel(lua_State *, lua_State *)
    void lua_settop(lua_State *, int)
    int lua_status(lua_State *)
    int lua_toboolean(lua_State *, int)
    lua_CFunction lua_tocfunction(lua_State *, int)
    double lua_tonumber(lua_State *, int)
    lua_State *lua_tothread(lua_State *, int)
    void *lua_touserdata(lua_State *, int)
    int lua_type(lua_State *, int)
    void lua_xmove(lua_State *, lua_State *, int)
    int luaL_argerror(lua_State *, int, const char *)
    const char *luaL_checklstring(lua_State *, int, size_t *)
    double luaL_checknumber(lua_State *, int)
    int luaL_error(lua_State *, const char *, ...)

cdef enum:
    TICK_US = 2000         # between two interrupts
    IDLE_TICKS_MAX = 500   # without a script, before the thread ends
    PLACE_BYTES = 256
    TEXT_BYTES_MAX = 128 * 1024 * 1024 # what one call makes or is given
    UNPACKED_MAX = 8000    # what the stack of C holds
    MOVED_MAX = 10_000_000 # elements of a table by one call
    BELOW_MAX = 1_000_000  # places before the first one, of which each is made

cdef struct State:
    pthread_mutex_t mutex
    pthread_t watcher
    int pid                # of the process whose threads know the mutex: a fork leaves them behind
    bint has_watcher       # to be joined
    bint is_watching       # it has not ended
    bint is_begun          # a script runs, or is about to
    bint is_closing
    lua_State *main
    lua_State *running
    bint is_outside        # in a function of Python: a hook waits until the script goes on
    bint is_ending
    int64_t slice_ends_ns
    long kilobytes_max
    char[PLACE_BYTES] place # the line at which it had to end
    char[PLACE_BYTES] own_source
    PyObject *owner        # the Guard, which owns this


# --- interrupts -----------------------------------------------------------------------------------


cdef void *watch(void *given) noexcept nogil:
    cdef State *state = <State *> given
    cdef int idle = 0
    pthread_mutex_lock(&state.mutex)
    while not state.is_closing and idle < IDLE_TICKS_MAX:
        idle += 1
        if state.running != NULL:
            lua_sethook(state.running, &hook, LUA_MASKCOUNT, 1)
        pthread_mutex_unlock(&state.mutex)
        usleep(TICK_US)
        pthread_mutex_lock(&state.mutex)
        if state.is_begun:
            idle = 0
    state.is_watching = False
    pthread_mutex_unlock(&state.mutex)
    return NULL


cdef void enter(State *state, lua_State *coroutine) noexcept nogil:
    """From here on its instructions run, or none (NULL)."""
    pthread_mutex_lock(&state.mutex)
    state.running = coroutine
    pthread_mutex_unlock(&state.mutex)


cdef void set_hook(State *state, lua_State *L, bint is_on) noexcept nogil:
    pthread_mutex_lock(&state.mutex)
    lua_sethook(L, &hook if is_on else NULL, LUA_MASKCOUNT if is_on else 0, is_on)
    pthread_mutex_unlock(&state.mutex)


cdef char registered       # its address is the key of the state in the registry of Lua


cdef void hook(lua_State *L, lua_Debug *_) noexcept nogil:
    lua_pushlightuserdata(L, &registered)
    lua_rawget(L, LUA_REGISTRYINDEX)
    cdef State *state = <State *> lua_touserdata(L, -1)
    lua_settop(L, -2)
    if state.is_outside:
        return
    if not state.is_ending:
        set_hook(state, L, False)
        look(state, L)
    if state.is_ending:
        end(state, L)


cdef void look(State *state, lua_State *L) noexcept nogil:
    """Ask Python whether the script has to end, if its slice is over or it holds too much."""
    cdef bint is_large = not has_room(state, L)
    if is_large or elapsed_ns() >= state.slice_ends_ns:
        state.is_outside = True
        state.is_ending = has_to_end(state.owner, is_large)
        state.is_outside = False


cdef bint has_room(State *state, lua_State *L) noexcept nogil:
    """Whether the script holds no more than it may, garbage aside."""
    if lua_gc(L, LUA_GCCOUNT, 0) <= state.kilobytes_max:
        return True
    lua_gc(L, LUA_GCCOLLECT, 0)
    return lua_gc(L, LUA_GCCOUNT, 0) <= state.kilobytes_max


cdef bint has_to_end(PyObject *owner, bint is_large) noexcept with gil:
    return (<Guard> owner).ask(is_large)


cdef int end(State *state, lua_State *L) noexcept nogil:
    """Fail, now and before every instruction from here on."""
    set_hook(state, L, True)
    note_place(state, L)
    lua_pushstring(L, "ended")
    return lua_error(L)


cdef void note_place(State *state, lua_State *L) noexcept nogil:
    """Keep the line of the script at which it ends: the first one counts."""
    cdef lua_Debug found
    cdef int level = 0
    while not state.place[0] and lua_getstack(L, level, &found):
        lua_getinfo(L, "Sl", &found)
        if found.currentline > 0 and strcmp(found.source, state.own_source):
            snprintf(state.place, PLACE_BYTES, "%.200s:%d", found.source, found.currentline)
        level += 1


# --- running --------------------------------------------------------------------------------------


cdef State *state_of(lua_State *L) noexcept nogil:
    """Of a function of ours: its first upvalue."""
    return <State *> lua_touserdata(L, LUA_GLOBALSINDEX - 1)


cdef int run(lua_State *L) noexcept nogil:
    """run(script, report): whether it went well, and the first of its results or what `report` makes of its error."""
    cdef State *state = state_of(L)
    cdef int status
    lua_settop(L, 2)
    lua_insert(L, 1)
    enter(state, L)
    status = lua_pcall(L, 0, 1, 1)
    enter(state, NULL)
    set_hook(state, L, False)
    lua_pushboolean(L, status == 0)
    lua_insert(L, 2)
    return 2


cdef bint is_suspended(lua_State *L, lua_State *coroutine) noexcept nogil:
    cdef lua_Debug found
    if coroutine == L:
        return False
    if lua_status(coroutine) == 0:
        return not lua_getstack(coroutine, 0, &found) and lua_gettop(coroutine) > 0
    return lua_status(coroutine) == LUA_YIELD


cdef int resume(lua_State *L) noexcept nogil:
    """coroutine.resume, which keeps track of the coroutine that runs. Lua's own refuses what cannot be resumed."""
    cdef State *state = state_of(L)
    cdef lua_State *coroutine = lua_tothread(L, 1)
    cdef int status, count = lua_gettop(L) - 1
    if coroutine == NULL or not is_suspended(L, coroutine):
        return own(L)(L)
    if not lua_checkstack(coroutine, count):
        return luaL_error(L, "too many arguments to resume")
    lua_xmove(L, coroutine, count)
    lua_setlevel(L, coroutine)
    enter(state, coroutine)
    status = lua_resume(coroutine, count)
    enter(state, L)
    if state.is_ending:
        return end(state, L)
    count = lua_gettop(coroutine) if status == 0 or status == LUA_YIELD else 1
    if not lua_checkstack(L, count + 1):
        return luaL_error(L, "too many results to resume")
    lua_pushboolean(L, status == 0 or status == LUA_YIELD)
    lua_xmove(coroutine, L, count)
    return count + 1


# --- functions of Python --------------------------------------------------------------------------


cdef int call_python(lua_State *L) noexcept nogil:
    """Call the function of Python behind it, on the main coroutine; the third upvalue is whether it returns errors."""
    cdef State *state = state_of(L)
    cdef lua_State *main = state.main
    cdef int status, given, count = lua_gettop(L)
    prepare(state, L, count)
    lua_pushvalue(L, LUA_GLOBALSINDEX - 2)
    lua_insert(L, 1)
    if L != main:
        if not lua_checkstack(main, count + 1):
            return luaL_error(L, "stack overflow")
        lua_xmove(L, main, count + 1)
    given = lua_gettop(main) - count - 1
    state.is_outside = True
    status = lua_pcall(main, count, LUA_MULTRET, 0)
    state.is_outside = False
    given = lua_gettop(main) - given
    if L != main:
        lua_xmove(main, L, given)
    if state.is_ending:
        return end(state, L)
    if status != 0 and lua_type(L, -1) != LUA_TSTRING:
        lua_pushstring(L, "ERR internal error")
    if status == 0 and lua_toboolean(L, 1):
        return given - 1
    lua_createtable(L, 0, 1)
    lua_insert(L, -2)
    lua_setfield(L, -2, "err")
    return 1 if lua_toboolean(L, LUA_GLOBALSINDEX - 3) else lua_error(L)


cdef void prepare(State *state, lua_State *L, int count) noexcept nogil:
    """Fail where the script has to end, and where Python could not be given these arguments."""
    cdef size_t size = 0
    cdef int place
    if not state.is_ending:
        look(state, L)
    if state.is_ending:
        end(state, L)
    for place in range(1, count + 1):
        if lua_type(L, place) == LUA_TSTRING:
            size += lua_objlen(L, place)
    if size > TEXT_BYTES_MAX:
        luaL_error(L, "arguments are too large")


# --- functions of Lua's own -----------------------------------------------------------------------


cdef lua_CFunction own(lua_State *L) noexcept nogil:
    """The function of C that is guarded. Called in the guard's frame, it names the script's line in its errors."""
    return lua_tocfunction(L, LUA_GLOBALSINDEX - 2)


cdef int rep(lua_State *L) noexcept nogil:
    cdef size_t size, made
    cdef const char *text = luaL_checklstring(L, 1, &size)
    cdef double count = luaL_checknumber(L, 2)
    if size == 0 or not count >= 1:
        lua_pushlstring(L, "", 0)
        return 1
    if not size * count <= TEXT_BYTES_MAX:
        return luaL_error(L, "resulting string too large")
    cdef size_t total = size * <size_t> count
    cdef char *all = <char *> lua_newuserdata(L, total)
    memcpy(all, text, size)
    made = size
    while made < total:
        memcpy(all + made, all, min(made, total - made))
        made += min(made, total - made)
    lua_pushlstring(L, all, total)
    return 1


cdef int search(lua_State *L) noexcept nogil:
    """search(text, wanted, first): the place of a plain text from `first` on, in linear time, unlike string.find."""
    cdef size_t size, wanted_size, first = <size_t> luaL_checknumber(L, 3) - 1
    cdef const char *text = luaL_checklstring(L, 1, &size)
    cdef const char *wanted = luaL_checklstring(L, 2, &wanted_size)
    cdef const char *found = <const char *> memmem(text + first, size - first, wanted, wanted_size)
    if found == NULL:
        return 0
    lua_pushnumber(L, found - text + 1)
    return 1


cdef int unpack(lua_State *L) noexcept nogil:
    cdef bint has_first = lua_type(L, 2) > LUA_TNIL, has_last = lua_type(L, 3) > LUA_TNIL
    cdef double first = 1, last
    if (lua_type(L, 1) == LUA_TTABLE and (not has_first or lua_isnumber(L, 2))
            and (not has_last or lua_isnumber(L, 3))):
        if has_first:
            first = lua_tonumber(L, 2)
        last = lua_tonumber(L, 3) if has_last else <double> lua_objlen(L, 1)
        if last < first:
            return 0
        if not last - first < UNPACKED_MAX:
            return luaL_error(L, "too many results to unpack")
    return own(L)(L)


cdef int insert(lua_State *L) noexcept nogil:
    """table.insert, which in C writes past what protects a table; the third upvalue holds the protected ones."""
    cdef int count = lua_gettop(L)
    if lua_type(L, 1) == LUA_TTABLE and (count == 2 or count == 3 and lua_isnumber(L, 2)):
        lua_pushvalue(L, 1)
        lua_rawget(L, LUA_GLOBALSINDEX - 3)
        if lua_type(L, -1) != LUA_TNIL:
            lua_pushstring(L, "Attempt to modify a readonly table")
            return lua_error(L)
        lua_settop(L, count)
        if count == 3:
            check_moved(L)
    return own(L)(L)


cdef int remove(lua_State *L) noexcept nogil:
    if lua_type(L, 1) == LUA_TTABLE and lua_isnumber(L, 2):
        check_moved(L)
    return own(L)(L)


cdef void check_moved(lua_State *L) noexcept nogil:
    """A table of few elements may call itself long, and each place up to there would be moved."""
    cdef double place = lua_tonumber(L, 2)
    if not -BELOW_MAX < place < 2147483648.:
        luaL_argerror(L, 2, "position out of bounds")
    if lua_objlen(L, 1) - place > MOVED_MAX:
        luaL_error(L, "too many elements to move")


# --- opening --------------------------------------------------------------------------------------


cdef int make(lua_State *L) noexcept nogil:
    """make(name, …): a function of ours by its name, with the rest as upvalues."""
    cdef const char *name = luaL_checklstring(L, 1, NULL)
    cdef lua_CFunction made = NULL
    if not strcmp(name, "run"):
        made = &run
    elif not strcmp(name, "resume"):
        made = &resume
    elif not strcmp(name, "python"):
        made = &call_python
    elif not strcmp(name, "rep"):
        made = &rep
    elif not strcmp(name, "search"):
        made = &search
    elif not strcmp(name, "unpack"):
        made = &unpack
    elif not strcmp(name, "insert"):
        made = &insert
    elif not strcmp(name, "remove"):
        made = &remove
    else:
        return luaL_argerror(L, 1, "no such guard")
    lua_settop(L, 3)
    lua_pushlightuserdata(L, state_of(L))
    lua_insert(L, 2)
    lua_pushcclosure(L, made, 3)
    return 1


cdef public int ephemera_lua_guard(lua_State *L) noexcept nogil:
    """Given the address of a state: `make` for it."""
    cdef State *state = <State *> <uintptr_t> (luaL_checknumber(L, 1) * 16)
    cdef lua_Debug caller
    state.main = L
    if lua_getstack(L, 1, &caller) and lua_getinfo(L, "S", &caller):
        snprintf(state.own_source, PLACE_BYTES, "%s", caller.source)
    lua_pushlightuserdata(L, &registered)
    lua_pushlightuserdata(L, state)
    lua_rawset(L, LUA_REGISTRYINDEX)
    lua_pushlightuserdata(L, state)
    lua_pushcclosure(L, &make, 1)
    return 1


def missing_function(module_path):
    """What an installed lupa does not export, as a text; None when nothing is missing."""
    cdef bytes path = module_path.encode()
    cdef const char *missing = lua_find_functions(path)
    return None if missing == NULL else missing.decode()


cdef class Guard:
    """The guard of one interpreter. `look` is asked whether the script has to end, and told whether it is too large."""

    cdef State *state
    cdef object look
    cdef object raised     # what `look` or a function for scripts raised that is no error of the script

    def __cinit__(self, look, long kilobytes_max):
        self.state = <State *> calloc(1, sizeof(State))
        if self.state == NULL:
            raise MemoryError
        self.state.owner = <PyObject *> self
        self.state.kilobytes_max = kilobytes_max
        self.look = look

    def __dealloc__(self):
        if self.state == NULL:
            return
        if self.state.has_watcher and self.state.pid == getpid():
            pthread_mutex_lock(&self.state.mutex)
            self.state.is_closing = True
            pthread_mutex_unlock(&self.state.mutex)
            pthread_join(self.state.watcher, NULL)
        free(self.state)

    @property
    def address(self):
        """For `ephemera_lua_guard`, which is given it in a number of Lua."""
        return <uintptr_t> self.state // 16

    @property
    def place(self):
        """The line at which the script was ended; empty where it was not."""
        return <bytes> self.state.place

    def set_slice(self, int64_t ends_ns):
        """Ask at this time (`elapsed_ns`), and until the next call of this at every interrupt from then on."""
        self.state.slice_ends_ns = ends_ns

    def begin(self):
        """To be called before a script runs. Raises ResourcesExhausted where no thread can be started to watch it."""
        cdef State *state = self.state
        state.is_ending = False
        state.place[0] = 0
        if state.pid != getpid():
            pthread_mutex_init(&state.mutex, NULL)
            state.pid = getpid()
            state.has_watcher = state.is_watching = False
        if not self.set_begun(True):
            self.start_watcher()

    def end(self):
        """To be called after it ran. Raises what ended it, if that was an exception that is no error of the script."""
        self.set_begun(False)
        raised, self.raised = self.raised, None
        if raised is not None:
            raise raised

    cdef bint set_begun(self, bint is_begun) noexcept:
        """Return whether the watcher has seen that in time."""
        pthread_mutex_lock(&self.state.mutex)
        self.state.is_begun = is_begun
        cdef bint is_watching = self.state.is_watching
        pthread_mutex_unlock(&self.state.mutex)
        return is_watching

    cdef start_watcher(self):
        cdef State *state = self.state
        if state.has_watcher:
            pthread_join(state.watcher, NULL)
        state.is_watching = True
        state.has_watcher = not pthread_create(&state.watcher, NULL, &watch, state)
        if not state.has_watcher:
            state.is_watching = False
            raise ResourcesExhausted(
                "no thread could be started that interrupts scripts. End some threads or processes, or raise"
                " their limit (ulimit -u, or the container's limit of pids)"
            )

    cdef bint ask(self, bint is_large) noexcept:
        try:
            return self.look(is_large)
        except BaseException as error:
            self.raised = error
            return True

    cdef void stop(self, error) noexcept:
        """Let the script end, and `end` raise this."""
        self.raised = error
        self.state.is_ending = True


cdef class Called:
    """A function for scripts: it returns whether it went well, and its result or the text that `explain` finds for its
    error. `need` is asked for room for a result of bytes."""

    cdef Guard guard
    cdef object function
    cdef object explain
    cdef object need

    def __init__(self, Guard guard, function, explain, need):
        self.guard = guard
        self.function = function
        self.explain = explain
        self.need = need

    def __call__(self, *arguments):
        try:
            result = self.function(*arguments)
            if isinstance(result, bytes):
                self.need(len(result))
            return True, result
        except Exception as error:
            words = self.explain(error)
            _forget_frames(error)
            return False, words
        except BaseException as error:
            self.guard.stop(error)
            return False, b"ended"


cdef _forget_frames(error):
    """Release what the functions held which an error passed through: a cycle of them would keep it."""
    while error is not None:
        error.__traceback__, error = None, error.__context__
