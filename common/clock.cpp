#include "common/clock.h"

namespace tandem {

const SystemClock& SystemClock::get() {
  static const SystemClock clock;
  return clock;
}

}  // namespace tandem
