// Read ranges of a file.
#pragma once

#include <unistd.h>

#include <cerrno>

#include "rows.hpp"

namespace dtf {

struct Read {
    std::int64_t end = -1;  // of the file, if it ends before the last range
    int error = 0;          // of the system; -1 for ranges that do not fill `out`
};

// Read `count` ranges of a file one after the other to `out`. Ranges that follow each other are read at once.
inline Read read_ranges(int file, const std::int64_t* begins, const std::int64_t* ends, std::size_t count,
                        std::uint8_t* out, std::size_t capacity) {
    Read read;
    for (std::size_t i = 0; i < count;) {
        std::uint64_t begin = split_at(begins, i), end = split_at(ends, i);
        while (++i < count && split_at(begins, i) == end) end = split_at(ends, i);
        if (begin > end || end > INT64_MAX || end - begin > capacity) {
            read.error = -1;
            return read;
        }
        while (begin < end) {
            const ssize_t got = pread(file, out, static_cast<std::size_t>(end - begin), static_cast<off_t>(begin));
            if (got < 0 && errno == EINTR) continue;
            if (got < 0) {
                read.error = errno;
                return read;
            }
            if (got == 0) {
                read.end = static_cast<std::int64_t>(begin);
                return read;
            }
            out += got;
            capacity -= static_cast<std::size_t>(got);
            begin += static_cast<std::uint64_t>(got);
        }
    }
    if (capacity != 0) read.error = -1;
    return read;
}

}  // namespace dtf
