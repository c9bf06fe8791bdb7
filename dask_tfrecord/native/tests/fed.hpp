// Records fed to a decoder, and the resulting content of the decoder.
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

// Content of a decoder as one string.
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

// Splits and shapes of a decoder, without values.
inline std::string splits_in(dtf::Decoder& decoder) {
    std::string all;
    for (dtf::Column& column : decoder.columns()) {
        for (dtf::Buffer* buffer : {&column.value_splits, &column.step_splits, &column.row_splits, &column.shapes}) {
            all += std::to_string(buffer->size()) + ':' + text(*buffer) + '|';
        }
    }
    return all;
}

inline std::string said_of(const dtf::Problem& problem) {
    std::string said;
    for (const std::int64_t part : {static_cast<std::int64_t>(problem.fault), std::int64_t{problem.column},
                                    problem.step, static_cast<std::int64_t>(problem.found)}) {
        said += std::to_string(part) + ' ';
    }
    return said + problem.text + ' ';
}

struct Flips {
    std::size_t refused = 0;  // records with a flipped bit that were refused
    std::size_t wrong = 0;    // where the decoder then held something of them, or did not go on as before
};

// Flips every bit of a payload, one at a time; `fed` feeds payloads to a new decoder.
template <class Feed>
Flips flip_every_bit(const std::string& good, Feed fed) {
    Fed one = fed({good}), two = fed({good, good});
    Flips found;
    for (std::size_t bit = 0; bit < 8 * good.size(); ++bit) {
        std::string flipped = good;
        flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
        Fed torn = fed({good, flipped});
        if (torn.whole()) continue;
        ++found.refused;
        found.wrong += contents(torn.decoder) != contents(one.decoder);
        torn.feed({good});
        found.wrong += contents(torn.decoder) != contents(two.decoder);
    }
    return found;
}

}  // namespace support
