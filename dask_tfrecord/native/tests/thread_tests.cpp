// Tests of what threads share: spare memory, tables, and the bytes of a shard. Run under ThreadSanitizer.
#include "checks.hpp"
#include "encode.hpp"
#include "fed.hpp"
#include "pixels.hpp"

#include <atomic>
#include <mutex>
#include <thread>

namespace {

using namespace support;
using dtf::Kind;
using dtf::ValueLayout;

constexpr std::size_t nthreads = 4;

template <class Work>
void on_threads(Work work) {
    std::vector<std::thread> threads;
    threads.reserve(nthreads);
    for (std::size_t number = 0; number < nthreads; ++number) threads.emplace_back([&work, number] { work(number); });
    for (std::thread& thread : threads) thread.join();
}

void decoders_read_the_same_bytes() {
    std::string bytes;
    for (std::int64_t number = 0; number < 400; ++number) {
        bytes += framed(example(entry("i", int64_list({number, 300, -number})) + entry("f", float_list({0.5f})) +
                                entry("b", bytes_list({"some text"}))));
    }
    const Specs specs{spec("i", Kind::int64, ValueLayout::ragged), spec("f", Kind::floats, ValueLayout::fixed),
                      text_spec("b", ValueLayout::fixed)};
    const auto read = [&] {
        dtf::Decoder decoder(specs, true, true);
        const dtf::Walk walk = decoder.feed(bytes_of(bytes), bytes.size(), UINT64_MAX);
        return std::to_string(walk.records) + contents(decoder);
    };
    std::atomic<std::size_t> wrong{0};
    std::vector<std::string> found(nthreads);
    // The first uses of tables and of the kind of the processor are at the same time, too.
    on_threads([&](std::size_t number) { found[number] = read(); });
    for (const std::string& each : found) wrong += each != read();
    CHECK(wrong == 0);
}

// Blocks of decoded rows are often freed by another thread than filled them, and the next ones take their memory.
void memory_moves_between_threads() {
    std::mutex mutex;
    std::vector<std::pair<dtf::Memory, std::uint8_t>> given;
    std::atomic<std::size_t> wrong{0};
    on_threads([&](std::size_t number) {
        Random random(number);
        for (std::size_t round = 0; round < 60; ++round) {
            dtf::Buffer buffer;
            const auto byte = static_cast<std::uint8_t>(random.next());
            std::size_t size = 0;
            // It grows from the heap to a mapping, which is new or spare, and to a larger one.
            for (const std::size_t more : {std::size_t{1000}, std::size_t{5} << 20, random.below(std::size_t{5} << 20)}) {
                std::uint8_t* place = buffer.grow(more);
                if (more > 0) place[0] = place[more - 1] = byte;
                size += more;
            }
            wrong += buffer.size() != size || buffer.data()[0] != byte || buffer.data()[999] != byte;
            dtf::Memory released = buffer.release();
            const std::lock_guard<std::mutex> lock(mutex);
            if (!given.empty()) {
                wrong += given.back().first.data()[0] != given.back().second;
                given.pop_back();
            }
            given.emplace_back(std::move(released), byte);
        }
    });
    CHECK(wrong == 0 && given.size() == 1);
}

// A thread keeps the weights of the last sizes for itself.
void images_are_resized_at_the_same_time() {
    const auto resized = [](std::size_t number, std::size_t round) {
        const dtf::ImageShape image{5 + number, 7 + round, 3};
        const std::vector<std::uint8_t> pixels(image.size(), static_cast<std::uint8_t>(number * 16 + round));
        std::vector<std::uint8_t> out(11 * 13 * 3);
        dtf::filter_pixels(pixels.data(), image, 1.0F, dtf::Filter{round % 2 == 0, true}, 11, 13, out.data());
        return out;
    };
    constexpr std::size_t rounds = 6;
    std::vector<std::vector<std::uint8_t>> found(nthreads * rounds);
    on_threads([&](std::size_t number) {
        for (std::size_t round = 0; round < rounds; ++round) found[number * rounds + round] = resized(number, round);
    });
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < found.size(); ++i) wrong += found[i] != resized(i / rounds, i % rounds);
    CHECK(wrong == 0);
}

// More threads than shelves come and go. Mappings that one of them leaves are taken by others, and each is taken once.
void spares_outlive_their_threads() {
    constexpr std::size_t size = std::size_t{4} << 20;
    std::atomic<std::size_t> wrong{0};
    for (std::size_t generation = 0; generation < 6; ++generation) {
        on_threads([&](std::size_t number) {
            const auto byte = static_cast<std::uint8_t>(generation * nthreads + number);
            std::vector<dtf::Memory> kept(3);
            for (dtf::Memory& memory : kept) {
                if (!memory.resize(size)) ++wrong;
                std::memset(memory.data(), byte, 64);
            }
            for (const dtf::Memory& memory : kept) {
                for (std::size_t i = 0; i < 64; ++i) wrong += memory.data()[i] != byte;
            }
        });
    }
    CHECK(wrong == 0);
}

// Encoders of one set of arrays, which they only read.
void encoders_read_the_same_arrays() {
    std::vector<std::int64_t> numbers(500);
    for (std::size_t i = 0; i < numbers.size(); ++i) numbers[i] = static_cast<std::int64_t>(i * i);
    dtf::Field field;
    field.key = "i";
    field.count = 2;
    field.values = reinterpret_cast<const std::uint8_t*>(numbers.data());
    field.nbytes = numbers.size() * sizeof(std::int64_t);
    const auto encoded = [&] {
        dtf::Encoder encoder({field}, numbers.size() / 2, dtf::Message::example);
        std::vector<std::uint8_t> out(1 << 16);
        const dtf::Encoded done = encoder.encode(0, out.data(), out.size());
        out.resize(static_cast<std::size_t>(done.bytes));
        return out;
    };
    std::vector<std::vector<std::uint8_t>> found(nthreads);
    on_threads([&](std::size_t number) { found[number] = encoded(); });
    for (const auto& each : found) CHECK(!each.empty() && each == encoded());
}

const checks::Test tests[] = {
    TEST(decoders_read_the_same_bytes),
    TEST(memory_moves_between_threads),
    TEST(images_are_resized_at_the_same_time),
    TEST(spares_outlive_their_threads),
    TEST(encoders_read_the_same_arrays),
};

}  // namespace

int main() { return checks::run(tests); }
