// Tests of reading window by window: the same records, in the same order, as one feed of all bytes.
#include "checks.hpp"
#include "support.hpp"
#include "windows.hpp"

namespace {

using namespace support;
using dtf::Framing;
using dtf::Stop;
using dtf::Walk;

// Records that a walk passed, with the byte where each begins.
struct Passed {
    std::vector<std::pair<std::uint64_t, std::string>> records;
    Walk walk;
    dtf::View view;
};

// A source that reads few bytes at a time, is interrupted now and then, and fails at byte `fails`.
struct Hesitant {
    const std::string& bytes;
    Random& random;
    std::uint64_t fails;

    std::ptrdiff_t operator()(std::uint8_t* out, std::size_t size, std::uint64_t position) const {
        if (random.below(5) == 0) {
            errno = EINTR;
            return -1;
        }
        if (position >= fails) {
            errno = EIO;
            return -1;
        }
        const std::size_t most = static_cast<std::size_t>(std::min<std::uint64_t>(fails, bytes.size()) - position);
        const std::size_t got = std::min({size, most, 1 + random.below(64)});
        std::copy_n(bytes_of(bytes) + position, got, out);
        return static_cast<std::ptrdiff_t>(got);
    }
};

auto taking(Passed& passed, std::uint64_t refused) {
    return [&passed, refused](const std::uint8_t* data, std::size_t size, std::uint64_t limit, std::uint64_t at) {
        std::uint64_t begins = at;
        return Framing(true).each(data, size, limit, [&](dtf::Cursor payload) {
            if (passed.records.size() == refused) return false;
            const std::string_view text(reinterpret_cast<const char*>(payload.here()), payload.left());
            passed.records.emplace_back(begins, text);
            begins += dtf::header_size + text.size() + dtf::footer_size;
            return true;
        });
    };
}

void equals_one_feed() {
    Random random(7);
    for (int round = 0; round < 3000; ++round) {
        std::string bytes;
        for (std::size_t left = random.below(12); left > 0; --left) {
            bytes += framed(std::string(random.below(100), static_cast<char>('a' + random.below(26))));
        }
        const std::size_t records_size = bytes.size();
        if (random.below(3) == 0) bytes += std::string(random.below(11), 'z');
        if (random.below(6) == 0 && !bytes.empty()) bytes[random.below(bytes.size())] ^= 1;
        const std::uint64_t limit = random.below(3) == 0 ? random.below(10) : UINT64_MAX;
        const std::uint64_t last = random.below(3) == 0 ? random.below(bytes.size() + 9) : UINT64_MAX;
        const std::uint64_t refused = random.below(5) == 0 ? random.below(8) : UINT64_MAX;
        const std::uint64_t fails = random.below(6) == 0 ? random.below(bytes.size() + 1) : bytes.size();

        Passed whole;
        const std::size_t fed = static_cast<std::size_t>(std::min<std::uint64_t>({bytes.size(), last, fails}));
        whole.walk = taking(whole, refused)(bytes_of(bytes), fed, limit, 0);

        // The caller of a window goes on where a call ends, with a larger window if it has to.
        Passed parts;
        std::size_t capacity = 1 + random.below(150);
        std::string memory(capacity, '\0');
        std::uint64_t consumed = 0, passed = 0;
        for (;;) {
            Exact buffer(memory);
            const dtf::Reach reach{random.below(bytes.size() + 20), bytes.size(), 1 + random.below(400),
                                   1 + random.below(40), 1 + random.below(200)};
            const Hesitant source{bytes, random, fails};
            dtf::Windows windows(buffer.data(), buffer.size(), parts.view, reach, source);
            const std::uint64_t before = parts.view.position;
            Passed more;
            more.records.swap(parts.records);
            const std::uint64_t start = consumed;
            parts.walk = windows.each(limit == UINT64_MAX ? limit : limit - passed,
                                      last == UINT64_MAX ? last : last - consumed,
                                      [&](const std::uint8_t* data, std::size_t size, std::uint64_t most,
                                          std::uint64_t at) { return taking(more, refused)(data, size, most, start + at); });
            parts.records.swap(more.records);
            consumed += parts.walk.consumed;
            passed += parts.walk.records;
            memory.assign(reinterpret_cast<char*>(buffer.data()), buffer.size());
            CHECK(parts.view.begin <= parts.view.end && parts.view.end <= capacity);
            CHECK(parts.view.position - (parts.view.end - parts.view.begin) == consumed);
            if (parts.walk.stop != Stop::more) break;
            if (last != UINT64_MAX && parts.walk.need > last - consumed) break;
            const std::uint64_t need = parts.walk.need;
            if (need > bytes.size() - consumed || consumed + need > fails) break;
            if (need > capacity) {
                capacity = static_cast<std::size_t>(need);
                memory.resize(capacity);
            } else {
                CHECK(parts.view.position > before || parts.walk.records > 0);
            }
        }
        CHECK(parts.records == whole.records);
        CHECK(parts.walk.stop == whole.walk.stop);
        CHECK(consumed == whole.walk.consumed);
        CHECK(parts.walk.stop != Stop::more || parts.walk.need == whole.walk.need);
        CHECK(consumed <= std::max(records_size, bytes.size()));
    }
}

void reads_no_more_than_planned() {
    std::string bytes;
    for (int i = 0; i < 20; ++i) bytes += framed(std::string(84, 'x'));  // 100 bytes each
    std::uint64_t furthest = 0;
    const auto read = [&](std::uint8_t* out, std::size_t size, std::uint64_t position) {
        furthest = std::max<std::uint64_t>(furthest, position + size);
        std::copy_n(bytes_of(bytes) + position, size, out);
        return static_cast<std::ptrdiff_t>(size);
    };
    Passed passed;
    Exact buffer(std::string(1000, '\0'));
    dtf::Windows windows(buffer.data(), buffer.size(), passed.view, {700, bytes.size(), 10'000, 16, 1000}, read);
    passed.walk = windows.each(7, UINT64_MAX, taking(passed, UINT64_MAX));
    CHECK(passed.walk.stop == Stop::limit && passed.walk.records == 7 && passed.walk.consumed == 700);
    CHECK(furthest == 700);
}

// Records that are skipped by their headers: the same as one feed of all bytes, and the bytes between are not read.
void skips_records() {
    Random random(8);
    for (int round = 0; round < 3000; ++round) {
        std::string bytes;
        std::vector<std::int64_t> wanted, all{0};
        const std::size_t count = random.below(12);
        for (std::size_t i = 0; i < count; ++i) {
            bytes += framed(std::string(random.below(300), static_cast<char>('a' + i)));
            all.push_back(static_cast<std::int64_t>(bytes.size()));
            if (random.below(3) == 0) wanted.push_back(static_cast<std::int64_t>(i));
        }
        const bool checks_crc = random.below(2) == 0;
        const Framing framing(checks_crc);
        std::vector<std::string> whole, parts;
        const auto into = [](std::vector<std::string>& out) {
            return [&out](dtf::Cursor payload) {
                out.emplace_back(reinterpret_cast<const char*>(payload.here()), payload.left());
                return true;
            };
        };
        framing.each_selected(bytes_of(bytes), bytes.size(), 0, wanted.data(), wanted.size(), nullptr, into(whole));

        std::vector<std::int64_t> found(count + 1, -1);
        dtf::Ends ends(found.data() + 1, count);
        std::string memory(1 + random.below(400), '\0');
        dtf::View view;
        std::uint64_t first = 0, consumed = 0, most_read = 0;
        std::size_t done = 0;
        for (;;) {
            Exact buffer(memory);
            const Hesitant hesitant{bytes, random, bytes.size()};
            const auto read = [&](std::uint8_t* out, std::size_t size, std::uint64_t position) {
                const std::ptrdiff_t got = hesitant(out, size, position);
                if (got > 0) most_read += static_cast<std::uint64_t>(got);
                return got;
            };
            const dtf::Reach reach{random.below(bytes.size() + 20), bytes.size(), 1 + random.below(900),
                                   1 + random.below(40), 1 + random.below(200)};
            dtf::Windows windows(buffer.data(), buffer.size(), view, reach, read);
            const std::uint64_t start = consumed;
            const Walk walk = windows.each(
                UINT64_MAX, UINT64_MAX,
                [&](const std::uint8_t* data, std::size_t size, std::uint64_t, std::uint64_t at) {
                    ends.begin(start + at);
                    const Walk part = framing.each_selected(data, size, first, wanted.data() + done,
                                                            wanted.size() - done, &ends, into(parts));
                    first += part.records;
                    while (done < wanted.size() && static_cast<std::uint64_t>(wanted[done]) < first) ++done;
                    return part;
                });
            consumed += walk.consumed;
            memory.assign(reinterpret_cast<char*>(buffer.data()), buffer.size());
            CHECK(view.begin <= view.end && view.end <= memory.size());
            CHECK(view.position - (view.end - view.begin) == consumed);
            if (walk.stop != Stop::more) break;
            CHECK(walk.need <= bytes.size() - consumed);
            if (walk.need > memory.size()) memory.resize(static_cast<std::size_t>(walk.need));
        }
        CHECK(parts == whole && done == wanted.size());
        const std::size_t passed = wanted.empty() ? 0 : static_cast<std::size_t>(wanted.back()) + 1;
        CHECK(first == passed);
        for (std::size_t i = 1; i <= count; ++i) CHECK(found[i] == (i <= passed ? all[i] : -1));
        CHECK(most_read <= bytes.size());
    }
}

// A record that ends beyond the source is skipped: the position lies beyond it, too.
void skips_past_the_end() {
    const std::string bytes = framed("a") + framed(std::string(100, 'b'));
    const std::string cut = bytes.substr(0, bytes.size() - 50);
    const auto read = [&](std::uint8_t* out, std::size_t size, std::uint64_t position) {
        std::copy_n(bytes_of(cut) + position, size, out);
        return static_cast<std::ptrdiff_t>(size);
    };
    Exact buffer(std::string(200, '\0'));
    dtf::View view;
    const std::int64_t wanted[] = {2};
    dtf::Windows windows(buffer.data(), buffer.size(), view, {cut.size(), cut.size(), 1000, 20, 200}, read);
    const Walk walk = windows.each(
        UINT64_MAX, UINT64_MAX, [&](const std::uint8_t* data, std::size_t size, std::uint64_t at, std::uint64_t) {
            static_cast<void>(at);
            return Framing(true).each_selected(data, size, 0, wanted, 1, nullptr, [](dtf::Cursor) { return true; });
        });
    CHECK(walk.stop == Stop::more && walk.records == 2 && walk.consumed == bytes.size());
    CHECK(view.position == bytes.size() && view.begin == view.end);
}

const checks::Test tests[] = {
    TEST(equals_one_feed),
    TEST(skips_records),
    TEST(skips_past_the_end),
    TEST(reads_no_more_than_planned),
};

}  // namespace

int main() { return checks::run(tests); }
