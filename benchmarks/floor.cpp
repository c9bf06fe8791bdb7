// What reading shards costs at least: windows of a MiB are read, CRCs checked, and payloads copied into fresh memory.
//
// Usage: floor FILE…; prints the processor time in seconds, and the bytes of payloads. floor.py compiles it.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <vector>

#include "crc32c.hpp"

namespace {

constexpr std::size_t window = 1 << 20;
constexpr std::size_t header = 12;
constexpr std::size_t footer = 4;
// Bytes of memory that is new each time, as the result of a task is.
constexpr std::size_t result = 32 << 20;

double processor_time() {
    timespec now{};
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

template <typename Number>
Number load(const std::uint8_t* data) {
    Number number;
    std::memcpy(&number, data, sizeof number);
    return number;
}

std::uint8_t* fresh() {
    void* memory = mmap(nullptr, result, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) std::exit(2);
    madvise(memory, result, MADV_HUGEPAGE);
    return static_cast<std::uint8_t*>(memory);
}

[[noreturn]] void damaged(const char* path) {
    std::fprintf(stderr, "%s: damaged, or a record is larger than a window\n", path);
    std::exit(1);
}

}  // namespace

int main(int count, char** paths) {
    const auto crc = dtf::crc::best();
    std::vector<std::uint8_t> buffer(2 * window);
    std::size_t total = 0;
    std::size_t used = 0;
    const double start = processor_time();
    std::uint8_t* out = fresh();
    for (int number = 1; number < count; ++number) {
        const int file = open(paths[number], O_RDONLY);
        std::size_t have = 0;
        for (;;) {
            const ssize_t more = read(file, buffer.data() + have, window);
            if (more < 0) damaged(paths[number]);
            have += static_cast<std::size_t>(more);
            std::size_t at = 0;
            while (have - at >= header + footer) {
                const std::uint8_t* record = buffer.data() + at;
                const auto size = load<std::uint64_t>(record);
                if (size > window - header - footer) damaged(paths[number]);
                if (have - at < header + size + footer) break;
                const std::uint8_t* payload = record + header;
                if (dtf::crc::mask(crc(record, 8)) != load<std::uint32_t>(record + 8)) damaged(paths[number]);
                if (dtf::crc::mask(crc(payload, size)) != load<std::uint32_t>(payload + size)) damaged(paths[number]);
                if (used + size > result) {
                    munmap(out, result);
                    out = fresh();
                    used = 0;
                }
                std::memcpy(out + used, payload, size);
                used += size;
                total += size;
                at += header + size + footer;
            }
            have -= at;
            std::memmove(buffer.data(), buffer.data() + at, have);
            if (more == 0) break;
        }
        if (have != 0) damaged(paths[number]);
        close(file);
    }
    std::printf("%.6f %zu\n", processor_time() - start, total);
}
