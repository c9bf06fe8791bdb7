// Basics of the fuzzers: a seed and a number that reproduce an execution, and mutations of protobuf messages.
#pragma once

#include <cstdlib>
#include <iterator>

#include "support.hpp"

namespace fuzzing {

using namespace support;

inline std::uint64_t seed = 0;
inline std::uint64_t execution = 0;

inline void say_where() {
    std::fprintf(stderr, "native_fuzz: in execution %llu; repeat it with the seed %llu:%llu\n",
                 static_cast<unsigned long long>(execution), static_cast<unsigned long long>(seed),
                 static_cast<unsigned long long>(execution));
}

inline void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "native_fuzz: does not hold: %s\n", what);
    say_where();
    std::exit(1);
}

#define REQUIRE(...) fuzzing::require((__VA_ARGS__), #__VA_ARGS__)

inline std::string slice_of(const std::string& bytes, Random& random, std::size_t most) {
    const std::size_t begin = random.below(bytes.size() + 1);
    return bytes.substr(begin, random.below(std::min(most, bytes.size() - begin) + 1));
}

// A varint that stands at `at`, or would: longer than it need be, or saying something else.
inline void tamper_with_varint(std::string& bytes, std::size_t at, Random& random) {
    std::size_t end = at;
    while (end < bytes.size() && (bytes[end] & 0x80) != 0 && end - at < 10) ++end;
    end = std::min(end + 1, bytes.size());
    std::uint64_t value = 0;
    for (std::size_t i = at; i < end && i - at < 10; ++i) {
        value |= (bytes_of(bytes)[i] & std::uint64_t{0x7f}) << (7 * (i - at));
    }
    const std::uint64_t odd[] = {0, 1, value + 1, value - 1, value << 1, INT32_MAX, std::uint64_t{1} << 31,
                                 UINT32_MAX, std::uint64_t{1} << 63, UINT64_MAX, bytes.size(), value};
    bytes.replace(at, end - at, varint(odd[random.below(std::size(odd))], 1 + random.below(11)));
}

inline void mutate(std::string& bytes, const std::string& other, Random& random) {
    static constexpr std::uint8_t interesting[] = {0, 1, 8, 10, 11, 12, 13, 18, 19, 20, 26, 127, 128, 255};
    const std::size_t at = random.below(bytes.size() + 1);
    const std::size_t left = bytes.size() - at;
    switch (random.below(12)) {
        case 0:
            if (left > 0) bytes[at] = static_cast<char>(bytes[at] ^ (1 << random.below(8)));
            break;
        case 1:
            if (left > 0) bytes[at] = static_cast<char>(interesting[random.below(std::size(interesting))]);
            break;
        case 2: bytes.resize(at); break;
        case 3: bytes.erase(at, random.below(std::min<std::size_t>(left, 40) + 1)); break;
        case 4:
            for (std::size_t n = random.below(12); n > 0; --n) bytes.insert(at, 1, static_cast<char>(random.next()));
            break;
        case 5: bytes.insert(at, slice_of(bytes, random, 200)); break;
        case 6: {  // two neighbouring slices change places
            const std::size_t first = random.below(std::min<std::size_t>(left, 60) + 1);
            const std::size_t both = first + random.below(std::min<std::size_t>(left - first, 60) + 1);
            const auto from = bytes.begin() + static_cast<std::ptrdiff_t>(at);
            std::rotate(from, from + static_cast<std::ptrdiff_t>(first), from + static_cast<std::ptrdiff_t>(both));
            break;
        }
        case 7:
        case 8: tamper_with_varint(bytes, at, random); break;
        case 9: bytes = bytes.substr(0, at) + other.substr(random.below(other.size() + 1)); break;
        case 10: bytes.insert(at, slice_of(other, random, 200)); break;
        default: {  // an unknown group round a slice, or half of one
            const auto field = static_cast<std::uint32_t>(1 + random.below(5));
            const std::size_t depth = random.below(10) == 0 ? 90 + random.below(20) : 1;
            const std::size_t end = at + random.below(std::min<std::size_t>(left, 60) + 1);
            for (std::size_t i = 0; i < depth && random.below(200) != 0; ++i) bytes.insert(end, tag(field, 4));
            for (std::size_t i = 0; i < depth && random.below(200) != 0; ++i) bytes.insert(at, tag(field, 3));
        }
    }
}

}  // namespace fuzzing
