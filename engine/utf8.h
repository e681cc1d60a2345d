// UTF-8 as a tokenizer needs it.
#pragma once

#include <string_view>

namespace tandem {

// Whole code points in shortest form, no surrogates, nothing above U+10FFFF.
bool valid_utf8(std::string_view text);

}  // namespace tandem
