// Read ranges of a file, and write whole files.
#pragma once

#if defined(_WIN32)
#define NOMINMAX
#define WIN32_LEAN_AND_MEAN
#include <io.h>
#include <windows.h>
#else
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdio>

#include "rows.hpp"

namespace dtf {

struct Read {
    std::int64_t end = -1;  // of the file, if it ends before the last range
    int error = 0;          // of the system; -1 for ranges that do not fill `out`
};

// Read bytes; -1 with an error.
inline std::ptrdiff_t read_at(int file, std::uint8_t* out, std::size_t size, std::uint64_t offset) {
#if defined(_WIN32)
    OVERLAPPED place{};
    place.Offset = static_cast<DWORD>(offset);
    place.OffsetHigh = static_cast<DWORD>(offset >> 32);
    const auto most = static_cast<DWORD>(std::min<std::size_t>(size, std::size_t{1} << 30));
    DWORD got = 0;
    if (ReadFile(reinterpret_cast<HANDLE>(_get_osfhandle(file)), out, most, &got, &place) ||
        GetLastError() == ERROR_HANDLE_EOF) {
        return static_cast<std::ptrdiff_t>(got);
    }
    errno = EIO;
    return -1;
#else
    return pread(file, out, size, static_cast<off_t>(offset));
#endif
}

// Read bytes that are in the page cache; -1 with EAGAIN if they are not, or with another error if that is unknown.
inline std::ptrdiff_t read_cached(int file, std::uint8_t* out, std::size_t size, std::uint64_t offset) {
#if defined(RWF_NOWAIT)
    const iovec part{out, size};
    return preadv2(file, &part, 1, static_cast<off_t>(offset), RWF_NOWAIT);
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
        for (++i; i < count && split_at(begins, i) == end; ++i) end = split_at(ends, i);
        if (begin > end || end > INT64_MAX || end - begin > capacity) {
            read.error = -1;
            return read;
        }
        while (begin < end) {
            const auto size = static_cast<std::size_t>(end - begin);
            const std::ptrdiff_t got = waits ? read_at(file, out, size, begin) : read_cached(file, out, size, begin);
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

// Write a file under a temporary name and rename it; false if a step fails, and then neither file is new.
inline bool publish_file(const char* temporary, const char* path, const std::uint8_t* data, std::size_t size) {
#if defined(_WIN32)
    static_cast<void>(temporary), static_cast<void>(path), static_cast<void>(data), static_cast<void>(size);
    return false;
#else
    const int file = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0) return false;
    bool whole = true;
    for (std::size_t done = 0; whole && done < size;) {
        const ssize_t wrote = write(file, data + done, size - done);
        if (wrote > 0) done += static_cast<std::size_t>(wrote);
        whole = wrote > 0 || (wrote < 0 && errno == EINTR);
    }
    // Network file systems report some errors here.
    whole = close(file) == 0 && whole;
    if (whole && std::rename(temporary, path) == 0) return true;
    unlink(temporary);
    return false;
#endif
}

// Size of a file; -1 if it can't be determined.
inline std::int64_t file_size(const char* path) {
#if defined(_WIN32)
    static_cast<void>(path);
    return -1;
#else
    struct stat found {};
    return stat(path, &found) == 0 ? static_cast<std::int64_t>(found.st_size) : -1;
#endif
}

}  // namespace dtf
