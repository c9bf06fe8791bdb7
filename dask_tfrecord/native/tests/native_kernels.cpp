// Fixed work for each native kernel, whose instructions benchmarks/instructions.py counts under callgrind.
//
//     native_kernels            print the compiler, the C library and the CRC in use, then the names of the kernels
//     native_kernels KERNEL     prepare the input, then do the work within `counted`, the only function that is counted
#include <functional>
#include <numeric>
#include <utility>

#if defined(__GLIBC__)
#include <gnu/libc-version.h>
#endif

#include "column_support.hpp"
#include "encode.hpp"
#include "message_support.hpp"
#include "pixels.hpp"
#include "resync.hpp"
#include "rows.hpp"

using namespace support;
using dtf::Kind;
using dtf::ValueLayout;

using Work = std::function<std::uint64_t()>;  // returns a sum, which depends on all of the work

extern "C" __attribute__((noinline, used)) std::uint64_t counted(const Work& work) { return work(); }

namespace {

std::string framed_all(const std::vector<std::string>& payloads) {
    std::string stream;
    for (const std::string& payload : payloads) stream += framed(payload);
    return stream;
}

std::vector<std::string> made(std::size_t records, const std::function<std::string(Random&)>& make) {
    Random random(1);
    std::vector<std::string> payloads;
    for (std::size_t i = 0; i < records; ++i) payloads.push_back(make(random));
    return payloads;
}

std::string noise(std::size_t size, Random& random) {
    std::string bytes;
    while (bytes.size() < size) bytes += little_endian(random.next());
    bytes.resize(size);
    return bytes;
}

std::string packed_int64(std::size_t count, std::uint64_t below, Random& random) {
    std::string packed;
    for (std::size_t i = 0; i < count; ++i) packed += varint(random.next() % below);
    return delimited(3, delimited(1, packed));
}

std::string packed_floats(std::size_t count, Random& random) {
    return delimited(2, delimited(1, noise(4 * count, random)));
}

std::string bytes_value(std::string_view bytes) { return delimited(1, delimited(1, bytes)); }

Work decoding(Specs specs, const std::vector<std::string>& payloads, dtf::Message message = dtf::Message::example) {
    return [specs = std::move(specs), stream = framed_all(payloads), message] {
        dtf::Decoder decoder(specs, true, false, message);
        const dtf::Walk walk = decoder.feed(bytes_of(stream), stream.size(), UINT64_MAX);
        return walk.consumed == stream.size() ? walk.records : 0;
    };
}

Work decoding(MessageTables tables, const std::vector<std::string>& payloads) {
    return [tables = std::move(tables), stream = framed_all(payloads)] {
        MessageDecoder decoder = tables.decoder();
        const dtf::Walk walk = decoder.feed(bytes_of(stream), stream.size(), UINT64_MAX);
        return walk.consumed == stream.size() ? walk.records : 0;
    };
}

Specs tabular_specs() {
    Specs specs;
    for (int k = 0; k < 8; ++k) specs.push_back(spec("int_" + std::to_string(k), Kind::int64, ValueLayout::fixed));
    for (int k = 0; k < 8; ++k) specs.push_back(spec("float_" + std::to_string(k), Kind::floats, ValueLayout::fixed));
    for (int k = 0; k < 2; ++k) specs.push_back(spec("str_" + std::to_string(k), Kind::bytes, ValueLayout::fixed));
    return specs;
}

std::vector<std::string> tabular() {
    return made(2000, [](Random& random) {
        std::string entries;
        for (int k = 0; k < 8; ++k) {
            entries += entry("int_" + std::to_string(k), packed_int64(1, std::uint64_t{1} << (8 * k + 1), random));
            entries += entry("float_" + std::to_string(k), packed_floats(1, random));
        }
        for (int k = 0; k < 2; ++k) {
            entries += entry("str_" + std::to_string(k), bytes_value(noise(8 + random.below(13), random)));
        }
        return example(entries);
    });
}

std::vector<std::string> vectors() {
    return made(2000, [](Random& random) {
        return example(entry("embedding", packed_floats(256, random)) + entry("label", packed_int64(1, 1000, random)) +
                       entry("id", bytes_value(noise(15, random))));
    });
}

Work decode_tabular() { return decoding(tabular_specs(), tabular()); }

// A label that is cast, a score that half of the records lack, up to 16 boxes, and 20 sparse values.
Work decode_mixed() {
    const auto detection = [](Random& random) {
        std::string entries = entry("boxes", packed_floats(4 * random.below(17), random));
        if (random.below(2) == 0) entries += entry("score", packed_floats(1, random));
        return example(entries + entry("value", packed_floats(20, random)) + entry("index", packed_int64(20, 10000, random)) +
                       entry("label", packed_int64(1, 100, random)));
    };
    return decoding({cast_to(spec("label", Kind::int64, ValueLayout::fixed), dtf::Cast::uint8),
                     with_default(spec("score", Kind::floats, ValueLayout::fixed), {std::string(4, '\0')}),
                     spec("boxes", Kind::floats, ValueLayout::ragged, 4),
                     spec("index", Kind::int64, ValueLayout::ragged), spec("value", Kind::floats, ValueLayout::ragged)},
                    made(2000, detection));
}

Work decode_vectors() {
    return decoding({spec("embedding", Kind::floats, ValueLayout::fixed, 256),
                     spec("label", Kind::int64, ValueLayout::fixed), spec("id", Kind::bytes, ValueLayout::fixed)},
                    vectors());
}

Work decode_raw() {
    const auto image = [](Random& random) {
        return example(entry("image", bytes_value(noise(12288, random))) + entry("label", packed_int64(1, 1000, random)));
    };
    return decoding({spec("image", Kind::bytes, ValueLayout::raw, 12288), spec("label", Kind::int64, ValueLayout::fixed)},
                    made(200, image));
}

Work decode_tokens() {
    const auto sentence = [](Random& random) {
        return example(entry("tokens", packed_int64(20 + random.below(493), 50000, random)) +
                       entry("label", packed_int64(1, 2, random)));
    };
    return decoding({spec("tokens", Kind::int64, ValueLayout::ragged), spec("label", Kind::int64, ValueLayout::fixed)},
                    made(1000, sentence));
}

Work decode_sequences() {
    const auto sequence = [](Random& random) {
        std::string frames, words;
        for (std::size_t step = 10 + random.below(41); step > 0; --step) {
            frames += delimited(1, packed_floats(16, random));
            words += delimited(1, packed_int64(1 + random.below(5), 50000, random));
        }
        return sequence_example(entry("label", packed_int64(1, 1000, random)),
                                entry("frames", frames) + entry("words", words));
    };
    return decoding({spec("label", Kind::int64, ValueLayout::fixed),
                     steps(spec("frames", Kind::floats, ValueLayout::fixed, 16)),
                     steps(spec("words", Kind::int64, ValueLayout::ragged))},
                    made(500, sequence), dtf::Message::sequence_example);
}

Work decode_tensors() {
    const auto tensor = [](Random& random) {
        const std::string proto = header(dtf::DataType::float32, {16, 16, 4}) + content(noise(4096, random));
        return example(entry("tensor", bytes_value(proto)));
    };
    return decoding({tensor_spec("tensor", dtf::DataType::float32, 4, {16, 16, 4})}, made(500, tensor));
}

// Single values of each type, without and with presence, and two texts.
Work decode_messages() {
    MessageTables made_tables;
    const int root = made_tables.add_table();
    for (std::uint32_t type = 1; type <= 18; ++type) {
        if (type != 10 && type != 11) made_tables.add(root, type, static_cast<FieldType>(type));
    }
    for (std::uint32_t number = 20; number < 24; ++number) {
        made_tables.with_presence(made_tables.add(root, number, FieldType::int64));
    }
    const auto message = [](Random& random) {
        std::string fields;
        for (std::uint32_t type = 1; type < 24; ++type) {
            const auto wire = type < 19 ? dtf::wire_type_of(static_cast<FieldType>(type)) : dtf::WireType::varint;
            if (type == 10 || type == 11 || type == 19) continue;
            if (wire == dtf::WireType::delimited) fields += delimited(type, noise(5 + random.below(20), random));
            if (wire == dtf::WireType::varint) fields += tag(type, 0) + varint(random.below(std::uint64_t{1} << (type * 2 % 30)));
            if (wire == dtf::WireType::fixed64) fields += tag(type, 1) + noise(8, random);
            if (wire == dtf::WireType::fixed32) fields += tag(type, 5) + noise(4, random);
        }
        return fields;
    };
    return decoding(made_tables, made(2000, message));
}

// Tracks of states, each a message of numbers, and lists of numbers, packed and not.
Work decode_tracks() {
    MessageTables made_tables;
    const int root = made_tables.add_table();
    made_tables.add_many(root, 1, FieldType::float64, true);
    made_tables.add_many(root, 2, FieldType::int32, true);
    made_tables.add_many(root, 3, FieldType::sint64);
    const int states = made_tables.add_messages(root, 4);
    for (std::uint32_t number = 1; number <= 8; ++number) {
        made_tables.add(states, number, number < 4 ? FieldType::float64 : number < 8 ? FieldType::float32 : FieldType::boolean);
    }
    const auto track = [](Random& random) {
        std::string numbers, fields = delimited(1, noise(8 * random.below(30), random));
        for (std::size_t i = random.below(50); i > 0; --i) numbers += varint(random.below(5000));
        fields += delimited(2, numbers);
        for (std::size_t i = random.below(20); i > 0; --i) fields += tag(3, 0) + varint(random.below(5000));
        for (std::size_t i = random.below(60); i > 0; --i) {
            std::string state;
            for (std::uint32_t number = 1; number < 4; ++number) state += tag(number, 1) + noise(8, random);
            for (std::uint32_t number = 4; number < 8; ++number) state += tag(number, 5) + noise(4, random);
            fields += delimited(4, state + tag(8, 0) + varint(random.below(2)));
        }
        return fields;
    };
    return decoding(made_tables, made(200, track));
}

Work checksum() {
    Random random(1);
    return [bytes = noise(1 << 20, random)] {
        const dtf::crc::Function crc = dtf::crc::best();
        std::uint64_t sum = crc(bytes_of(bytes), bytes.size());
        for (std::size_t size = 8; size < 2048; size += 8) sum += crc(bytes_of(bytes) + size, size);
        return sum;
    };
}

Work scan_headers() {
    return [stream = framed_all(tabular())] {
        return dtf::Framing(true).scan(bytes_of(stream), stream.size(), UINT64_MAX).records;
    };
}

Work check_records() {
    return [stream = framed_all(vectors())] {
        return dtf::Framing(true).check(bytes_of(stream), stream.size()).records;
    };
}

Work resynchronise() {
    std::string stream = framed_all(vectors());
    for (std::size_t at = 5000; at < stream.size(); at += 50000) stream[at] = static_cast<char>(stream[at] ^ 1);
    return [stream] {
        dtf::Resync resync(0, stream.size(), true);
        resync.feed(bytes_of(stream), stream.size(), true);
        return std::uint64_t{resync.stretches().size()};
    };
}

Work encode_rows() {
    constexpr std::size_t rows = 2000;
    Random random(1);
    std::string tokens;
    std::vector<std::int64_t> splits{0};
    for (std::size_t row = 0; row < rows; ++row) {
        const std::size_t count = random.below(100);
        for (std::size_t i = 0; i < count; ++i) tokens += little_endian<std::uint64_t>(random.below(50000));
        splits.push_back(splits.back() + static_cast<std::int64_t>(count));
    }
    return [tokens, splits, floats = noise(rows * 64 * 4, random)] {
        dtf::Field ragged, dense;
        ragged.key = "tokens";
        ragged.values = bytes_of(tokens);
        ragged.nbytes = tokens.size();
        ragged.row_splits = dtf::Splits{splits.data(), splits.size()};
        dense.key = "embedding";
        dense.kind = Kind::floats;
        dense.count = 64;
        dense.values = bytes_of(floats);
        dense.nbytes = floats.size();
        dtf::Encoder encoder({ragged, dense}, rows, dtf::Message::example);
        std::vector<std::uint8_t> out(2 * tokens.size() + 2 * floats.size());
        const dtf::Encoded done = encoder.encode(0, out.data(), out.size());
        return done.records == rows ? done.bytes : 0;
    };
}

// Rows of 0 to 40 items of 8 bytes.
struct Rows {
    std::vector<std::int64_t> splits{0}, items, index;

    Rows() {
        Random random(1);
        for (std::size_t row = 0; row < 5000; ++row) {
            splits.push_back(splits.back() + static_cast<std::int64_t>(random.below(41)));
            index.push_back(static_cast<std::int64_t>(random.below(5000)));
        }
        for (std::int64_t i = splits.back(); i > 0; --i) items.push_back(static_cast<std::int64_t>(random.below(1000)));
    }
    dtf::RowSource source() const {
        return {reinterpret_cast<const std::uint8_t*>(items.data()), items.size(), splits.data(), 5000};
    }
};

Work take_rows() {
    return [rows = Rows()] {
        std::size_t size = 0;
        for (const std::int64_t row : rows.index) {
            const auto at = static_cast<std::size_t>(row);
            size += 8 * static_cast<std::size_t>(rows.splits[at + 1] - rows.splits[at]);
        }
        std::vector<std::uint8_t> out(size);
        const std::vector<dtf::RowSource> sources{rows.source()};
        const dtf::Picked picked{sources, nullptr, rows.index.data(), 5000};
        return std::uint64_t{dtf::take_rows(picked, 8, out.data(), out.size())};
    };
}

Work pad_rows() {
    return [rows = Rows()] {
        const std::uint8_t filler[8] = {};
        std::vector<std::uint8_t> out(5000 * 40 * 8);
        const std::vector<dtf::RowSource> sources{rows.source()};
        return std::uint64_t{dtf::pad_rows({sources, nullptr, nullptr, 5000}, 8, 40, filler, out.data())};
    };
}

Work sort_rows() {
    return [rows = Rows()] {
        std::vector<std::int64_t> order(rows.items.size());
        return std::uint64_t{dtf::sort_rows(rows.items.data(), rows.items.size(), 1, rows.splits.data(), 5000,
                                            order.data())};
    };
}

// Images of DROID, by the filters of TensorFlow and of dlimp.
template <bool lanczos>
Work resize_image() {
    Random random(1);
    return [pixels = noise(180 * 320 * 3, random), out = std::vector<std::uint8_t>(224 * 224 * 3)]() mutable {
        const dtf::ImageShape image{180, 320, 3};
        if (lanczos) {
            dtf::filter_pixels(bytes_of(pixels), image, 1.0F, dtf::Filter{true, true}, 224, 224, out.data());
        } else {
            dtf::resize_pixels(bytes_of(pixels), image, 1.0F, 224, 224, out.data());
        }
        return std::uint64_t{1} + out.back();
    };
}

const std::pair<const char*, Work (*)()> kernels[] = {
    {"decode_tabular", decode_tabular}, {"decode_mixed", decode_mixed},     {"decode_vectors", decode_vectors},
    {"decode_raw", decode_raw},         {"decode_tokens", decode_tokens},   {"decode_sequences", decode_sequences},
    {"decode_tensors", decode_tensors}, {"decode_messages", decode_messages}, {"decode_tracks", decode_tracks},
    {"checksum", checksum},             {"scan_headers", scan_headers},
    {"check_records", check_records},   {"resynchronise", resynchronise},   {"encode_rows", encode_rows},
    {"take_rows", take_rows},           {"pad_rows", pad_rows},             {"sort_rows", sort_rows},
    {"resize_bilinear", resize_image<false>}, {"resize_lanczos3", resize_image<true>},
};

const char* crc_in_use() {
#if defined(DTF_X86)
    if (dtf::has_clmul()) return "product";
#endif
    return dtf::crc::has_instruction() ? "instruction" : "tables";
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
#if defined(__clang__)
        std::printf("clang %d", __clang_major__);
#else
        std::printf("gcc %d", __GNUC__);
#endif
#if defined(__GLIBC__)
        std::printf(", glibc %s", gnu_get_libc_version());
#endif
        std::printf(", CRC by %s%s\n", crc_in_use(), dtf::has_avx2() ? ", AVX2" : "");
        for (const auto& kernel : kernels) std::puts(kernel.first);
        return 0;
    }
    for (const auto& kernel : kernels) {
        if (std::string_view(kernel.first) != argv[1]) continue;
        const Work work = kernel.second();
        const std::uint64_t sum = counted(work);
        std::printf("%llu\n", static_cast<unsigned long long>(sum));
        return sum == 0;
    }
    std::fprintf(stderr, "unknown kernel %s\n", argv[1]);
    return 2;
}
