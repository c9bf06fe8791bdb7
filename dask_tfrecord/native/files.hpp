// Read ranges of a file.
#pragma once

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>

#include "rows.hpp"

namespace dtf {

struct Read {
    std::int64_t end = -1;  // of the file, if it ends before the last range
    int error = 0;          // of the system; -1 for ranges that do not fill `out`
};

// Read bytes that are in the page cache; -1 with EAGAIN if they are not, or with another error if that is unknown.
inline ssize_t read_cached(int file, std::uint8_t* out, std::size_t size, off_t offset) {
#if defined(RWF_NOWAIT)
    const iovec part{out, size};
    return preadv2(file, &part, 1, offset, RWF_NOWAIT);
#else
    static_cast<void>(file), static_cast<void>(out), static_cast<void>(size), static_cast<void>(offset);
    errno = ENOSYS;
    return -1;
#endif
}

// Read `count` ranges of a file one after the other to `out`. Ranges that follow each other are read at once.
inline Read read_ranges(int file, const std::int64_t* begins, const std::int64_t* ends, std::size_t count,
                        std::uint8_t* out, std::size_t capacity) {
    Read read;
    bool waits = false;  // ranges may have to be fetched from the disk: all at a time
    for (std::size_t i = 0; i < count;) {
        std::uint64_t begin = split_at(begins, i), end = split_at(ends, i);
        while (++i < count && split_at(begins, i) == end) end = split_at(ends, i);
        if (begin > end || end > INT64_MAX || end - begin > capacity) {
            read.error = -1;
            return read;
        }
        while (begin < end) {
            const auto size = static_cast<std::size_t>(end - begin);
            const auto offset = static_cast<off_t>(begin);
            const ssize_t got = waits ? pread(file, out, size, offset) : read_cached(file, out, size, offset);
            if (got < 0 && errno == EINTR) continue;
            if (got < 0 && !waits) {
                waits = true;
#if defined(POSIX_FADV_WILLNEED)
                for (std::size_t next = errno == EAGAIN ? i : count; next < count; ++next) {
                    const std::uint64_t first = split_at(begins, next);
                    posix_fadvise(file, static_cast<off_t>(first), static_cast<off_t>(split_at(ends, next) - first),
                                  POSIX_FADV_WILLNEED);
                }
#endif
                continue;
            }
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
