// Base of the decoders: the framed records of a block, one after the other.
#pragma once

#include "framing.hpp"

namespace dtf {

// `Decoder::take` decodes the payload of a record; false if it is refused. Framing, CRCs and messages are handled in
// one pass, while a record is in cache.
template <class Decoder>
class RecordDecoder {
public:
    // Decode at most `limit` records of the block. Compiled once, for all callers.
    DTF_APART Walk feed(const std::uint8_t* data, std::size_t size, std::uint64_t limit) {
        return framing_.each(data, size, limit, [this](Cursor payload) { return decoder().take(payload); });
    }

    // Decode the records of the block with the `count` ascending numbers `wanted`; the block starts with record
    // `first`. Other records are skipped by their headers; the last of them may extend beyond the block. The
    // ends of all of them are added to `ends`, if it is given.
    DTF_APART Walk feed_selected(const std::uint8_t* data, std::size_t size, std::uint64_t first,
                                 const std::int64_t* wanted, std::size_t count, Ends* ends = nullptr) {
        return framing_.each_selected(data, size, first, wanted, count, ends,
                                      [this](Cursor payload) { return decoder().take(payload); });
    }

private:
    friend Decoder;

    explicit RecordDecoder(bool check_crc) : framing_(check_crc) {}

    Decoder& decoder() { return static_cast<Decoder&>(*this); }

    Framing framing_;
};

}  // namespace dtf
