// Key tables of the maps of records. A lookup first tries the key at the same position of the preceding record.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cursor.hpp"

namespace dtf {

// Keys of one map and their columns. Most records of a file repeat the order of their keys, so the key that was at this
// position last time is tried first, with or without a column.
class Keys {
public:
    struct Key {
        Key(std::string name, int of) : head(name), text(std::move(name)), column(of) {}

        EntryHead head;
        std::string text;
        int column;  // below 0: a key without a column that was validated before
    };

    void add(const std::string& text, int column) {
        const Key& key = keys_.emplace_back(text, column);
        known_.emplace(key.text, &key);
    }
    void begin_record() { place_ = 0; }

    // Skip the next entry of the map if it is short, has the key that was at this position last time, and has a value.
    DTF_INLINE const Key* repeated(Cursor& map, Cursor& value) {
        if (place_ >= expected_.size()) return nullptr;
        const Key* key = expected_[place_];
        if (key->head.size == 0 || !map.short_entry(key->head, value)) return nullptr;
        ++place_;
        return key;
    }

    // Entry of a key; null if it lacks a column and was not validated before.
    DTF_INLINE const Key* find(Cursor key) {
        const std::size_t place = place_++;
        if (place < expected_.size() && is(expected_[place]->text, key)) return expected_[place];
        return look_up(key, place);
    }

    // Remember that the key of the last lookup is valid and lacks a column, so that it is not validated again.
    DTF_APART void pass(Cursor key) {
        if (passed_ == most_passed || key.left() > longest_passed) return;
        ++passed_;
        expect(place_ - 1, keys_.emplace_back(std::string(text_of(key)), -1));
    }

private:
    static constexpr std::size_t most_expected = 1024, longest_passed = 100;
    // stop learning from records that never repeat their order
    static constexpr std::size_t most_passed = 1024;

    static std::string_view text_of(Cursor key) {
        return {reinterpret_cast<const char*>(key.here()), key.left()};
    }

    static bool is(std::string_view text, Cursor key) { return text.size() == key.left() && key.pass(text); }

    DTF_APART const Key* look_up(Cursor key, std::size_t place) {
        const auto known = known_.find(text_of(key));
        if (known == known_.end()) return nullptr;
        expect(place, *known->second);
        return known->second;
    }

    void expect(std::size_t place, const Key& key) {
        if (place < expected_.size()) {
            expected_[place] = &key;
        } else if (place == expected_.size() && place < most_expected) {
            expected_.push_back(&key);
        }
    }

    std::deque<Key> keys_;  // those of the columns, and remembered ones without a column
    std::unordered_map<std::string_view, const Key*> known_;
    std::vector<const Key*> expected_;
    std::size_t passed_ = 0;
    std::size_t place_ = 0;
};

}  // namespace dtf
