// Key tables of the maps of records. A lookup first tries the key that followed the last one in a preceding record.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "cursor.hpp"

namespace dtf {

class Column;

// Keys of one map and their columns. Most records of a file repeat the order of their keys, so the key that followed the
// last one before is tried first, with or without a column, and then, as a record may lack this key, the next one.
class Keys {
public:
    struct Key {
        static constexpr std::uint8_t floats_tag = 0x12;  // of the FloatList in a Feature

        Key(std::string name, Column* of, std::uint8_t list_tag = 0)
            : head(name), text(std::move(name)), column(of) {
            if (list_tag != 0) one = EntryHead(text, list_tag, list_tag == floats_tag ? sizeof(float) : 0);
        }

        EntryHead one;  // of an entry of one value in the list of the column
        EntryHead head;
        std::string text;
        Column* column;  // null: values are not wanted
        Key* next = nullptr;
    };

    // Add the key of a column. A tag is that of the list with the one value of an entry.
    void add(const std::string& text, Column* column, std::uint8_t list_tag) {
        remember(keys_.emplace_back(text, column, list_tag));
    }
    void begin_record() { last_ = &begin_; }

    // Return whether the expected key has a column of one value.
    bool expect_one() const { return last_->next != nullptr && last_->next->one.exists(); }

    // Pass the expected keys to `take`, one after the other, until it returns false.
    template <class Take>
    DTF_INLINE void follow(Take take) {
        Key* last = last_;
        while (last->next != nullptr && take(*last->next)) last = last->next;
        last_ = last;
    }

    // Skip the next entry of the map if it is short, has an expected key, and has a value.
    DTF_INLINE const Key* repeated(Cursor& map, Cursor& value) {
        Cursor entry = map;
        return expect([&](const Key& key) { return map.short_entry(key.head, entry, value); });
    }

    // Entry of a key; null if it lacks a column and was not validated before.
    DTF_INLINE const Key* find(Cursor key) {
        const Key* expected = expect([key](const Key& next) { return is(next.text, key); });
        return expected != nullptr ? expected : look_up(key);
    }

    // Remember that the key of the last lookup is valid and lacks a column, so that it is not validated again.
    DTF_APART void pass(Cursor key) {
        if (passed_ == most_passed || key.left() > longest_passed) return;
        ++passed_;
        Key& passed = keys_.emplace_back(std::string(text_of(key)), nullptr);
        remember(passed);
        last_ = last_->next = &passed;
    }

private:
    static constexpr std::size_t most_passed = 1024, longest_passed = 100;

    static std::string_view text_of(Cursor key) {
        return {reinterpret_cast<const char*>(key.here()), key.left()};
    }

    static bool is(std::string_view text, Cursor key) { return text.size() == key.left() && key.pass(text); }

    void remember(Key& key) { known_.emplace(key.text, &key); }

    // The next key, or the one behind it, that fits.
    template <class Fits>
    DTF_INLINE const Key* expect(Fits fits) {
        Key* next = last_->next;
        if (next != nullptr && !fits(*next)) {
            next = next->next;
            if (next != nullptr && !fits(*next)) next = nullptr;
        }
        if (next != nullptr) last_ = next;
        return next;
    }

    DTF_APART const Key* look_up(Cursor key) {
        const auto known = known_.find(text_of(key));
        if (known == known_.end()) return nullptr;
        return last_ = last_->next = known->second;
    }

    std::deque<Key> keys_;  // those of the columns, and remembered ones without a column
    std::unordered_map<std::string_view, Key*> known_;
    Key begin_{"", nullptr};
    Key* last_ = &begin_;
    std::size_t passed_ = 0;
};

}  // namespace dtf
