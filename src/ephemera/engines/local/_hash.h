/* The hash of a segment's index: seeded, by folded multiplication. Whoever does not know the seed
   cannot make keys collide. Derived data: it may change between versions without a new format. */
#ifndef EPHEMERA_HASH_H
#define EPHEMERA_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t eph_fold(uint64_t a, uint64_t b) {
    unsigned __int128 wide = (unsigned __int128)a * b;
    return (uint64_t)wide ^ (uint64_t)(wide >> 64);
}

static inline uint64_t eph_hash(uint64_t seed, uint32_t family, const char *key, size_t n) {
    uint64_t a = 0, b = 0;
    uint64_t h = eph_fold(seed ^ 0x9e3779b97f4a7c15ull, family ^ (n << 32) ^ 0xd1b54a32d192ed03ull);
    for (; n >= 16; n -= 16, key += 16) {
        memcpy(&a, key, 8);
        memcpy(&b, key + 8, 8);
        h = eph_fold(a ^ seed ^ h, b ^ 0x8bb84b93962eacc9ull);
    }
    a = b = 0;
    memcpy(&a, key, n < 8 ? n : 8);
    if (n > 8) memcpy(&b, key + 8, n - 8);
    return eph_fold(a ^ seed ^ h, b ^ 0x2d358dccaa6c78a5ull);
}

#endif
