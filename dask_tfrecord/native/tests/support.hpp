// Shared by the native tests and the fuzzer: writers of protobuf and TFRecord, and blocks that ASan guards to the byte.
#pragma once

#include <algorithm>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "example.hpp"

namespace support {

// Bytes on the heap in a block of just their size: one byte too far is an error to ASan.
class Exact {
public:
    explicit Exact(std::string_view bytes) : size_(bytes.size()), data_(new std::uint8_t[bytes.size()]) {
        std::copy(bytes.begin(), bytes.end(), data_.get());
    }
    const std::uint8_t* data() const { return data_.get(); }
    std::uint8_t* data() { return data_.get(); }
    std::size_t size() const { return size_; }
    dtf::Cursor cursor() const { return dtf::Cursor(data_.get(), size_); }

private:
    std::size_t size_;
    std::unique_ptr<std::uint8_t[]> data_;
};

// Deterministic pseudo-random numbers.
class Random {
public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    std::uint64_t next() {
        state_ += 0x9e3779b97f4a7c15u;
        std::uint64_t mixed = (state_ ^ state_ >> 30) * 0xbf58476d1ce4e5b9u;
        mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
        return mixed ^ mixed >> 31;
    }
    std::size_t below(std::size_t bound) { return static_cast<std::size_t>(next() % bound); }

private:
    std::uint64_t state_;
};

inline const std::uint8_t* bytes_of(std::string_view text) {
    return reinterpret_cast<const std::uint8_t*>(text.data());
}

template <class T>
std::string little_endian(T value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
}

// A varint of at least `longest` bytes, padded where the value needs fewer.
inline std::string varint(std::uint64_t value, std::size_t longest = 1) {
    std::string bytes;
    do {
        bytes += static_cast<char>((value & 0x7f) | 0x80);
        value >>= 7;
    } while (value != 0 || bytes.size() < longest);
    bytes.back() = static_cast<char>(bytes.back() & 0x7f);
    return bytes;
}

inline std::string tag(std::uint32_t field, std::uint32_t wire_type) { return varint(field << 3 | wire_type); }

inline std::string delimited(std::uint32_t field, std::string_view content) {
    return tag(field, 2) + varint(content.size()).append(content);
}

inline std::string bytes_list(std::initializer_list<std::string_view> values) {
    std::string list;
    for (const std::string_view value : values) list += delimited(1, value);
    return delimited(1, list);
}

inline std::string float_list(std::initializer_list<float> values) {
    std::string packed;
    for (const float value : values) packed += little_endian(value);
    return delimited(2, delimited(1, packed));
}

inline std::string int64_list(std::initializer_list<std::int64_t> values) {
    std::string packed;
    for (const std::int64_t value : values) packed += varint(static_cast<std::uint64_t>(value));
    return delimited(3, delimited(1, packed));
}

// An entry of the feature map, with the feature's serialised fields.
inline std::string entry(std::string_view key, std::string_view feature) {
    return delimited(1, delimited(1, key) + delimited(2, feature));
}

inline std::string example(std::string_view entries) { return delimited(1, entries); }

inline std::uint32_t masked(std::string_view bytes) {
    return dtf::crc::mask(dtf::crc::by_tables(bytes_of(bytes), bytes.size()));
}

inline std::string framed(std::string_view payload) {
    const std::string length = little_endian<std::uint64_t>(payload.size());
    std::string record = length + little_endian(masked(length));
    return record.append(payload) + little_endian(masked(payload));
}

inline dtf::ColumnSpec spec(std::string_view key, dtf::Kind kind, dtf::ValueLayout layout, std::size_t count = 1,
                            std::size_t swap = 1) {
    dtf::ColumnSpec made;
    made.key = key;
    made.kind = kind;
    made.layout = layout;
    made.count = count;
    made.swap = swap;
    return made;
}

// A column whose values are checked.
inline dtf::ColumnSpec holding(dtf::Content content, dtf::ColumnSpec spec) {
    spec.content = content;
    return spec;
}

inline dtf::ColumnSpec text_spec(std::string_view key, dtf::ValueLayout layout, std::size_t count = 1) {
    return holding(dtf::Content::text, spec(key, dtf::Kind::bytes, layout, count));
}

template <class T>
std::vector<T> items(dtf::Buffer& buffer) {
    std::vector<T> found(buffer.size() / sizeof(T));
    if (!found.empty()) std::memcpy(found.data(), buffer.data(), buffer.size());
    return found;
}

inline std::string text(dtf::Buffer& buffer) {
    return buffer.size() == 0 ? std::string() : std::string(reinterpret_cast<char*>(buffer.data()), buffer.size());
}

}  // namespace support
