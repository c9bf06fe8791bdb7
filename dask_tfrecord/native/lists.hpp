// Repeated fields of protobuf messages, packed or not, value by value.
#pragma once

#include <optional>

#include "cursor.hpp"

namespace dtf {

// Packed values of a wire type. Strings and bytes are never packed.
template <class Visit>
bool visit_packed(Cursor list, WireType values, Visit visit) {
    constexpr std::size_t most = 512;
    std::int64_t run[most];
    const std::size_t width = values == WireType::fixed32 ? 4 : 8;
    while (!list.empty()) {
        std::size_t n = 0;
        if (values == WireType::varint) {
            if (!list.varints(run, most, n)) return false;
        } else {
            n = list.left() / width < most ? list.left() / width : most;
            if (n == 0) return false;
            const std::uint8_t* from = list.take(n * width);
            for (std::size_t i = 0; i < n; ++i) {
                run[i] = width == 4 ? load<std::uint32_t>(from + 4 * i) : load<std::int64_t>(from + 8 * i);
            }
        }
        visit(run, n);
    }
    return true;
}

// Skip a field of a message at nesting depth `level`. If it is a list of values of this wire type, packed or not, call
// `visit` with runs of its bits, or, for strings and bytes, with their sizes. Without a type it is no list.
template <class Visit>
bool visit_values(Cursor& message, std::uint32_t tag, std::optional<WireType> values, std::size_t level, Visit visit) {
    const auto found = static_cast<WireType>(tag & 7);
    if (!values || (found != *values && found != WireType::delimited)) return message.skip(tag, level);
    std::int64_t one = 0;
    if (found == WireType::delimited) {
        Cursor inside(message.here(), 0);
        if (!message.delimited(inside)) return false;
        if (*values != WireType::delimited) return visit_packed(inside, *values, visit);
        one = static_cast<std::int64_t>(inside.left());
    } else if (found == WireType::varint) {
        std::uint64_t bits;
        if (!message.varint(bits)) return false;
        one = static_cast<std::int64_t>(bits);
    } else {
        const std::uint8_t* from = message.take(found == WireType::fixed32 ? 4 : 8);
        if (from == nullptr) return false;
        one = found == WireType::fixed32 ? load<std::uint32_t>(from) : load<std::int64_t>(from);
    }
    visit(&one, std::size_t{1});
    return true;
}

}  // namespace dtf
