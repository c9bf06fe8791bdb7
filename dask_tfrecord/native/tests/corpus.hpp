// Input of the fuzzer: records of files, and generated records that cover every column.
#pragma once

#include "column_support.hpp"
#include "tensor_fuzz.hpp"

#include <cmath>
#include <fstream>
#include <optional>

namespace fuzzing {

using dtf::Kind;
using dtf::ValueLayout;
using dtf::Message;

struct Seen {  // a feature as a record of the corpus has it, or the first step of a feature list
    std::string key;
    Kind kind;
    std::size_t count;
    std::size_t size;              // of its first value, where that is bytes
    bool list = false;             // it is a feature list, or a key of items
    const Dtype* dtype = nullptr;  // of its first value, where that is a tensor
    Sizes sizes = {};
};

struct Sample {
    std::string bytes;  // the file
    std::vector<std::string> payloads;
    std::vector<Seen> features;
    Message message = Message::example;
};

// Whole records from the start of a file, as far as they hold.
inline std::vector<std::string> read_payloads(const std::string& bytes) {
    std::vector<std::string> payloads;
    for (std::size_t at = 0; bytes.size() - at >= 16;) {
        const std::size_t length = dtf::load<std::uint64_t>(bytes_of(bytes) + at);
        const std::string head = bytes.substr(at, 8);
        if (masked(head) != dtf::load<std::uint32_t>(bytes_of(bytes) + at + 8)) break;
        if (length > bytes.size() - at - 16) break;
        payloads.push_back(bytes.substr(at + 12, length));
        at += 16 + length;
    }
    return payloads;
}

// Specification of a tensor, if the value of a feature is one.
inline void find_tensor(Seen& seen, const std::string& value) {
    const Exact block(value);
    for (const Dtype& dtype : dtypes) {
        for (std::size_t rank = 0; rank < 4; ++rank) {
            dtf::Buffer values, splits, shapes;
            dtf::TensorProblem problem;
            const dtf::TensorSpec open{static_cast<int>(dtype.number), dtype.item, Sizes(rank, -1)};
            if (!dtf::read_tensor(block.cursor(), open, values, &splits, &shapes, problem)) continue;
            seen.dtype = &dtype;
            seen.sizes = items<std::int64_t>(shapes);
            return;
        }
    }
}

// A key as one kind of feature, if the record has it so: a ragged column counts its values.
inline bool read_feature(const Exact& block, Message message, Seen& seen) {
    const dtf::ColumnSpec ragged = spec(seen.key, seen.kind, ValueLayout::ragged);
    dtf::Decoder decoder({seen.list ? steps(ragged) : ragged}, true, false, message);
    if (decoder.feed(block.data(), block.size(), 1).records != 1) return false;
    dtf::Column& column = decoder.columns()[0];
    dtf::Buffer& ends = seen.list ? column.step_splits : column.row_splits;
    seen.count = ends.size() > 8 ? static_cast<std::size_t>(ends.at<std::int64_t>(1)) : 0;
    const bool sized = seen.kind == Kind::bytes && column.value_splits.size() > 8;
    seen.size = sized ? static_cast<std::size_t>(column.value_splits.at<std::int64_t>(1)) : 0;
    if (sized) find_tensor(seen, text(column.values).substr(0, seen.size));
    return true;
}

// Finds the keys of a record: a closed decoder reports a key that it lacks.
inline std::vector<Seen> read_features(const std::string& payload, Message message) {
    const Exact block(framed(payload));
    Specs known;
    std::vector<Seen> features;
    for (;;) {
        dtf::Decoder decoder(known, true, true, message);
        const dtf::Walk walk = decoder.feed(block.data(), block.size(), 1);
        if (walk.stop != dtf::Stop::feature || decoder.problem().fault != dtf::Fault::unknown_key) break;
        known.push_back(spec(decoder.problem().text, Kind::none, ValueLayout::skipped));
        known.push_back(steps(known.back()));
        if (known.size() > 400) break;
    }
    for (const dtf::ColumnSpec& column : known) {
        for (const Kind kind : {Kind::bytes, Kind::floats, Kind::int64}) {
            Seen seen{column.key, kind, 0, 0, column.list};
            if (!read_feature(block, message, seen)) continue;
            features.push_back(std::move(seen));
            break;
        }
    }
    return features;
}

inline bool is_message(const std::string& payload, Message message) {
    const Exact block(framed(payload));
    return dtf::Decoder({}, true, false, message).feed(block.data(), block.size(), 1).records == 1;
}

inline Message message_of(const std::string& payload) {
    if (is_message(payload, Message::example)) return Message::example;
    return is_message(payload, Message::sequence_example) ? Message::sequence_example : Message::example_list;
}

inline Sample sample_of(std::string bytes, std::optional<Message> message = std::nullopt) {
    Sample sample;
    sample.bytes = std::move(bytes);
    sample.payloads = read_payloads(sample.bytes);
    if (sample.payloads.empty()) return sample;
    sample.message = message ? *message : message_of(sample.payloads[0]);
    for (const std::size_t which : {std::size_t{0}, sample.payloads.size() / 2, sample.payloads.size() - 1}) {
        for (Seen& seen : read_features(sample.payloads[which], sample.message)) {
            sample.features.push_back(std::move(seen));
        }
    }
    return sample;
}

// ---- records made here

// A Feature message, now and then one without values or of two kinds.
inline std::string some_feature(Kind kind, std::size_t count, Random& random) {
    if (random.below(30) == 0) return random.below(2) == 0 ? "" : delimited(static_cast<std::uint32_t>(kind), "");
    std::string list;
    for (; count > 0; --count) {
        const std::int64_t ints[] = {0, 1, 2, -1, 127, 128, 255, 256, 65535, 65536, INT64_MAX, INT64_MIN};
        const float floats[] = {0, -0.0f, 1, 0.1f, 65504, 65520, 1e-8f, 3e38f, 3.4e38f, -HUGE_VALF};
        const auto likely = [&](std::size_t size) { return random.below(random.below(20) == 0 ? size : 3); };
        if (kind == Kind::int64) {
            list += tag(1, 0) + varint(static_cast<std::uint64_t>(ints[likely(std::size(ints))]));
        } else if (kind == Kind::floats) {
            list += tag(1, 5) + little_endian(floats[likely(std::size(floats))]);
        } else {
            list += delimited(1, random.below(30) == 0 ? "\xff" : std::string(random.below(5), 'a'));
        }
    }
    const std::string feature = delimited(static_cast<std::uint32_t>(kind), list);
    return random.below(30) == 0 ? int64_list({7}) + float_list({7}) + feature : feature;
}

// Keys say what they hold: a kind, and how many of it at least.
inline std::string some_entries(bool lists, Random& random) {
    const Kind kinds[] = {Kind::bytes, Kind::floats, Kind::int64};
    std::string entries;
    for (std::size_t n = 0; n < 12; ++n) {
        const std::size_t which = random.below(10) == 0 ? random.below(12) : n;  // some twice, in any order
        const std::size_t count = which / 3 + (which >= 9 ? random.below(3) : 0);
        const std::string key = "k" + std::to_string(which);
        if (random.below(15) == 0) continue;
        std::string value = lists ? "" : some_feature(kinds[which % 3], count, random);
        for (std::size_t step = lists ? random.below(4) : 0; step > 0; --step) {
            value += delimited(1, some_feature(kinds[which % 3], count, random));
        }
        entries += entry(key, value);
    }
    return entries;
}

// A tensor of each dtype, and of sizes of its own.
inline std::string some_tensors(Random& random) {
    std::string entries;
    for (const Dtype& dtype : dtypes) {
        const auto rows = static_cast<std::int64_t>(random.below(4));
        const std::string tensor = header(dtype.number, {rows, 2}) +
                                   some_values(dtype, static_cast<std::size_t>(rows) * 2, random);
        entries += entry("t" + std::to_string(static_cast<int>(dtype.number)), bytes_list({tensor}));
    }
    return entries;
}

// A list of Examples, and its context among them.
inline std::string some_examples(const std::string& context, Random& random) {
    std::string record;
    const std::size_t items = random.below(5), place = random.below(items + 1);
    for (std::size_t item = 0; item <= items; ++item) {
        if (item == place) record += delimited(2, example(context));
        if (item < items) record += delimited(1, random.below(20) == 0 ? "" : example(some_entries(false, random)));
    }
    return record;
}

inline Sample made_sample(Message message, std::uint64_t which) {
    Random random(which);
    std::string bytes;
    for (int record = 0; record < 40; ++record) {
        const std::string context = some_entries(false, random);
        bytes += framed(message == Message::example_list       ? some_examples(context, random)
                        : message == Message::sequence_example ? sequence_example(context, some_entries(true, random))
                                                               : example(context + some_tensors(random)));
    }
    return sample_of(bytes, message);
}

inline std::vector<Sample> read_corpus(char** begin, char** end) {
    std::vector<Sample> corpus;
    for (char** name = begin; name != end; ++name) {
        std::ifstream file(*name, std::ios::binary);
        Sample sample = sample_of({std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()});
        if (!sample.payloads.empty()) corpus.push_back(std::move(sample));
    }
    return corpus;
}

}  // namespace fuzzing
