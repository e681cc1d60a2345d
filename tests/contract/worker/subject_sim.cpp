#include "tests/contract/worker/subject.h"
#include "tests/unit/worker/test_router.h"

namespace tandem::worker {

bool subject_available() { return true; }
Config subject_config() { return quick_config(); }

}  // namespace tandem::worker
