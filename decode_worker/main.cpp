#include "worker/main_loop.h"

int main(int argc, char** argv) {
  return tandem::worker::run_main(argc, argv, "tandem-decode-worker", tandem::Role::kDecode);
}
