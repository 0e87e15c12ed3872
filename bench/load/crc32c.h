/* CRC-32C (Castagnoli), with the processor's own instruction where it has one. */
#ifndef BENCH_CRC32C_H
#define BENCH_CRC32C_H

#include <stddef.h>
#include <stdint.h>

uint32_t crc32c(const uint8_t *data, size_t size);

#endif
