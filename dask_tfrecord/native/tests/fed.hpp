// Records fed to a decoder, and all that it holds afterwards.
#pragma once

#include "support.hpp"

namespace support {

using Specs = std::vector<dtf::ColumnSpec>;

struct Fed {
    dtf::Decoder decoder;
    dtf::Walk walk;

    Fed(const Specs& specs, const std::vector<std::string>& payloads, bool closed = false,
        dtf::Message message = dtf::Message::example)
        : decoder(specs, true, closed, message) {
        feed(payloads);
    }
    void feed(const std::vector<std::string>& payloads) {
        std::string bytes;
        for (const std::string& payload : payloads) bytes += framed(payload);
        const Exact block(bytes);
        walk = decoder.feed(block.data(), block.size(), UINT64_MAX);
    }
    dtf::Column& column(std::size_t index = 0) { return decoder.columns()[index]; }
    bool whole() const { return walk.stop == dtf::Stop::more && walk.need == 12; }
    dtf::Fault fault() const { return walk.stop == dtf::Stop::feature ? decoder.problem().fault : dtf::Fault::none; }
};

// All that a decoder holds, as one string.
inline std::string contents(dtf::Decoder& decoder) {
    std::string all;
    for (dtf::Column& column : decoder.columns()) {
        for (dtf::Buffer* buffer :
             {&column.values, &column.value_splits, &column.step_splits, &column.row_splits, &column.shapes}) {
            all += std::to_string(buffer->size()) + ':' + text(*buffer) + '|';
        }
    }
    return all;
}

}  // namespace support
