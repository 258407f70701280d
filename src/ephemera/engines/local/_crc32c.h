/* CRC-32C (Castagnoli), by the processor's own instruction where it has one.

   A checksum of every record and every stored row is made here and nowhere else. */
#ifndef EPHEMERA_CRC32C_H
#define EPHEMERA_CRC32C_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static uint32_t eph_crc_table[256];

static uint32_t eph_crc_portable(uint32_t crc, const unsigned char *p, size_t n) {
    while (n--) crc = (crc >> 8) ^ eph_crc_table[(crc ^ *p++) & 0xff];
    return crc;
}

#if defined(__x86_64__)
#include <nmmintrin.h>
__attribute__((target("sse4.2")))
static uint32_t eph_crc_hardware(uint32_t crc, const unsigned char *p, size_t n) {
    uint64_t wide = crc, eight;
    for (; n >= 8; n -= 8, p += 8) { memcpy(&eight, p, 8); wide = _mm_crc32_u64(wide, eight); }
    crc = (uint32_t)wide;
    while (n--) crc = _mm_crc32_u8(crc, *p++);
    return crc;
}
static int eph_crc_has_hardware(void) { return __builtin_cpu_supports("sse4.2"); }
#elif defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
static uint32_t eph_crc_hardware(uint32_t crc, const unsigned char *p, size_t n) {
    uint64_t eight;
    for (; n >= 8; n -= 8, p += 8) { memcpy(&eight, p, 8); crc = __crc32cd(crc, eight); }
    while (n--) crc = __crc32cb(crc, *p++);
    return crc;
}
static int eph_crc_has_hardware(void) { return 1; }
#else
static uint32_t eph_crc_hardware(uint32_t crc, const unsigned char *p, size_t n) {
    return eph_crc_portable(crc, p, n);
}
static int eph_crc_has_hardware(void) { return 0; }
#endif

static uint32_t (*eph_crc_update)(uint32_t, const unsigned char *, size_t) = eph_crc_portable;

/* Must run once before the first checksum; a module does so when it is imported. */
static void eph_crc_setup(void) {
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? (c >> 1) ^ 0x82f63b78u : c >> 1;
        eph_crc_table[i] = c;
    }
    eph_crc_update = eph_crc_has_hardware() ? eph_crc_hardware : eph_crc_portable;
}

/* Extends `crc` (0 to begin) by these bytes. */
static inline uint32_t eph_crc32c(uint32_t crc, const void *data, size_t n) {
    return ~eph_crc_update(~crc, (const unsigned char *)data, n);
}

/* The table-driven way, whatever the processor: tests compare the two. */
static inline uint32_t eph_crc32c_portable(uint32_t crc, const void *data, size_t n) {
    return ~eph_crc_portable(~crc, (const unsigned char *)data, n);
}

#endif
