#include "crc32c.h"

#include <string.h>

#define POLYNOMIAL_REFLECTED 0x82F63B78u

#if defined(__x86_64__)
#include <nmmintrin.h>

__attribute__((target("sse4.2"))) static uint32_t by_instruction(const uint8_t *data, size_t size)
{
    uint64_t state = 0xFFFFFFFFu;
    for (; size >= 8; data += 8, size -= 8) {
        uint64_t word;
        memcpy(&word, data, 8);
        state = _mm_crc32_u64(state, word);
    }
    for (; size > 0; data++, size--)
        state = _mm_crc32_u8((uint32_t)state, *data);
    return ~(uint32_t)state;
}
#endif

static uint32_t by_table(const uint8_t *data, size_t size)
{
    static uint32_t table[256];
    if (table[1] == 0) {
        for (uint32_t byte = 0; byte < 256; byte++) {
            uint32_t remainder = byte;
            for (int bit = 0; bit < 8; bit++)
                remainder = (remainder >> 1) ^ (remainder & 1 ? POLYNOMIAL_REFLECTED : 0);
            table[byte] = remainder;
        }
    }
    uint32_t state = 0xFFFFFFFFu;
    for (; size > 0; data++, size--)
        state = table[(state ^ *data) & 0xFF] ^ (state >> 8);
    return ~state;
}

uint32_t crc32c(const uint8_t *data, size_t size)
{
#if defined(__x86_64__)
    if (__builtin_cpu_supports("sse4.2"))
        return by_instruction(data, size);
#endif
    return by_table(data, size);
}
