/* Integers in wire order.
 *
 * FlyMQ is big-endian throughout, the batch format is little-endian: both spellings are here so that the code that builds
 * a frame says which one it means.
 */
#ifndef BENCH_BYTES_H
#define BENCH_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

static inline void put_be16(uint8_t *at, uint16_t value) { value = htobe16(value); memcpy(at, &value, 2); }
static inline void put_be32(uint8_t *at, uint32_t value) { value = htobe32(value); memcpy(at, &value, 4); }
static inline void put_be64(uint8_t *at, uint64_t value) { value = htobe64(value); memcpy(at, &value, 8); }
static inline void put_le16(uint8_t *at, uint16_t value) { value = htole16(value); memcpy(at, &value, 2); }
static inline void put_le32(uint8_t *at, uint32_t value) { value = htole32(value); memcpy(at, &value, 4); }
static inline void put_le64(uint8_t *at, uint64_t value) { value = htole64(value); memcpy(at, &value, 8); }

static inline uint16_t get_be16(const uint8_t *at) { uint16_t value; memcpy(&value, at, 2); return be16toh(value); }
static inline uint32_t get_be32(const uint8_t *at) { uint32_t value; memcpy(&value, at, 4); return be32toh(value); }
static inline uint64_t get_be64(const uint8_t *at) { uint64_t value; memcpy(&value, at, 8); return be64toh(value); }
static inline uint16_t get_le16(const uint8_t *at) { uint16_t value; memcpy(&value, at, 2); return le16toh(value); }
static inline uint32_t get_le32(const uint8_t *at) { uint32_t value; memcpy(&value, at, 4); return le32toh(value); }
static inline uint64_t get_le64(const uint8_t *at) { uint64_t value; memcpy(&value, at, 8); return le64toh(value); }

#endif
