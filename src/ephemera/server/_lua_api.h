/* The C interface of Lua 5.1, found in lupa's own copy of it when the first script comes.

   lupa links Lua into its module and hides it from the linker, but exports its functions; so they are looked up by name
   in the module that Python has loaded. Layouts and numbers are those of lua.h 5.1, which is final. */
#ifndef EPHEMERA_LUA_API_H
#define EPHEMERA_LUA_API_H

#include <dlfcn.h>
#include <stddef.h>

typedef struct lua_State lua_State;

typedef struct lua_Debug {
    int event;
    const char *name;
    const char *namewhat;
    const char *what;
    const char *source;
    int currentline;
    int nups;
    int linedefined;
    int lastlinedefined;
    char short_src[60];
    int i_ci;
} lua_Debug;

typedef int (*lua_CFunction)(lua_State *);
typedef void (*lua_Hook)(lua_State *, lua_Debug *);

enum {
    LUA_REGISTRYINDEX = -10000,
    LUA_GLOBALSINDEX = -10002,
    LUA_MULTRET = -1,
    LUA_YIELD = 1,
    LUA_MASKCOUNT = 8,
    LUA_GCCOLLECT = 2,
    LUA_GCCOUNT = 3,
    LUA_TNIL = 0,
    LUA_TSTRING = 4,
    LUA_TTABLE = 5
};

#define LUA_FUNCTIONS(X)                                                                  \
    X(int, lua_checkstack, (lua_State *, int))                                            \
    X(void, lua_createtable, (lua_State *, int, int))                                     \
    X(int, lua_error, (lua_State *))                                                      \
    X(int, lua_gc, (lua_State *, int, int))                                               \
    X(int, lua_getinfo, (lua_State *, const char *, lua_Debug *))                         \
    X(int, lua_getstack, (lua_State *, int, lua_Debug *))                                 \
    X(int, lua_gettop, (lua_State *))                                                     \
    X(void, lua_insert, (lua_State *, int))                                               \
    X(int, lua_isnumber, (lua_State *, int))                                              \
    X(void *, lua_newuserdata, (lua_State *, size_t))                                     \
    X(size_t, lua_objlen, (lua_State *, int))                                             \
    X(int, lua_pcall, (lua_State *, int, int, int))                                       \
    X(void, lua_pushboolean, (lua_State *, int))                                          \
    X(void, lua_pushcclosure, (lua_State *, lua_CFunction, int))                          \
    X(void, lua_pushlightuserdata, (lua_State *, void *))                                 \
    X(void, lua_pushlstring, (lua_State *, const char *, size_t))                         \
    X(void, lua_pushnil, (lua_State *))                                                   \
    X(void, lua_pushnumber, (lua_State *, double))                                        \
    X(void, lua_pushstring, (lua_State *, const char *))                                  \
    X(void, lua_pushvalue, (lua_State *, int))                                            \
    X(void, lua_rawget, (lua_State *, int))                                               \
    X(void, lua_rawset, (lua_State *, int))                                               \
    X(void, lua_remove, (lua_State *, int))                                               \
    X(int, lua_resume, (lua_State *, int))                                                \
    X(void, lua_setfield, (lua_State *, int, const char *))                               \
    X(int, lua_sethook, (lua_State *, lua_Hook, int, int))                                \
    X(void, lua_setlevel, (lua_State *, lua_State *))                                     \
    X(void, lua_settop, (lua_State *, int))                                               \
    X(int, lua_status, (lua_State *))                                                     \
    X(int, lua_toboolean, (lua_State *, int))                                             \
    X(lua_CFunction, lua_tocfunction, (lua_State *, int))                                 \
    X(const char *, lua_tolstring, (lua_State *, int, size_t *))                          \
    X(double, lua_tonumber, (lua_State *, int))                                           \
    X(lua_State *, lua_tothread, (lua_State *, int))                                      \
    X(void *, lua_touserdata, (lua_State *, int))                                         \
    X(int, lua_type, (lua_State *, int))                                                  \
    X(void, lua_xmove, (lua_State *, lua_State *, int))                                   \
    X(int, luaL_argerror, (lua_State *, int, const char *))                               \
    X(const char *, luaL_checklstring, (lua_State *, int, size_t *))                      \
    X(double, luaL_checknumber, (lua_State *, int))                                       \
    X(int, luaL_error, (lua_State *, const char *, ...))

#define LUA_DECLARE(result, name, parameters) static result(*name) parameters;
LUA_FUNCTIONS(LUA_DECLARE)
#undef LUA_DECLARE

/* Find all of them in a module that is loaded. Returns the name of one that is missing, NULL when none is. */
static const char *lua_find_functions(const char *module) {
    void *handle = dlopen(module, RTLD_NOW | RTLD_NOLOAD);
    if (handle == NULL)
        return "its library";
#define LUA_FIND(result, name, parameters)                      \
    *(void **)&name = dlsym(handle, #name);                     \
    if (name == NULL) return #name;
    LUA_FUNCTIONS(LUA_FIND)
#undef LUA_FIND
    return NULL;
}

#endif
