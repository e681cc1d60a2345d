# How every module is built: warnings are errors, ccache and mold when present, one static library each.

find_program(TANDEM_CCACHE ccache)
if(TANDEM_CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${TANDEM_CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${TANDEM_CCACHE})
endif()
find_program(TANDEM_MOLD mold)
if(TANDEM_MOLD)
  add_link_options(-fuse-ld=mold)
endif()

# Paths inside objects are relative, so that two checkouts share one cache and no binary names a machine.
add_compile_options(-ffile-prefix-map=${CMAKE_SOURCE_DIR}=. -fno-omit-frame-pointer)

if(TANDEM_SANITIZE)
  add_compile_options(-fsanitize=${TANDEM_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${TANDEM_SANITIZE})
  if(TANDEM_SANITIZE STREQUAL "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    add_compile_options(-Wno-tsan)  # Asio's fences, which g++ cannot instrument; its mutexes order the same accesses.
  endif()
endif()

add_library(tandem_options INTERFACE)
target_compile_options(tandem_options INTERFACE -Wall -Wextra -Wpedantic -Werror -Wshadow
  -Wnon-virtual-dtor -Wold-style-cast -Woverloaded-virtual -Wconversion -Wno-sign-conversion
  -Wno-missing-field-initializers)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # g++ 12 reports false positives of these in inlined standard-library and coroutine code.
  target_compile_options(tandem_options INTERFACE -Wno-maybe-uninitialized -Wno-restrict
    -Wno-stringop-overflow -Wno-array-bounds)
endif()
target_include_directories(tandem_options INTERFACE ${CMAKE_SOURCE_DIR})
target_link_libraries(tandem_options INTERFACE Threads::Threads)

# tandem_module(NAME SOURCES a.cpp ... DEPENDS tandem_common fmt::fmt ...): a static library of one folder.
function(tandem_module name)
  cmake_parse_arguments(MODULE "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(${name} STATIC ${MODULE_SOURCES})
  target_link_libraries(${name} PUBLIC tandem_options ${MODULE_DEPENDS})
endfunction()

# tandem_program(NAME SOURCES main.cpp DEPENDS ...): an executable in build/<preset>/bin.
function(tandem_program name)
  cmake_parse_arguments(PROGRAM "" "" "SOURCES;DEPENDS" ${ARGN})
  add_executable(${name} ${PROGRAM_SOURCES})
  target_link_libraries(${name} PRIVATE tandem_options ${PROGRAM_DEPENDS})
endfunction()

# tandem_test(unit.common.config SOURCES ... DEPENDS ...): one doctest executable, one ctest entry. Names begin
# with the folder. Every test has a deadline.
function(tandem_test name)
  cmake_parse_arguments(TEST "" "TIMEOUT" "SOURCES;DEPENDS" ${ARGN})
  if(NOT TEST_TIMEOUT)
    set(TEST_TIMEOUT 600)
  endif()
  string(REPLACE "." "_" target test_${name})
  add_executable(${target} ${CMAKE_SOURCE_DIR}/tests/main.cpp ${TEST_SOURCES})
  set_target_properties(${target} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  target_link_libraries(${target} PRIVATE tandem_options doctest::doctest ${TEST_DEPENDS})
  add_test(NAME ${name} COMMAND ${target} WORKING_DIRECTORY ${CMAKE_SOURCE_DIR})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${TEST_TIMEOUT} SKIP_RETURN_CODE 77)
endfunction()
