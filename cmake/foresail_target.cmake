# Flags and helpers shared by every target of the project.

find_program(CCACHE ccache)
if(CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CCACHE})
endif()

add_library(foresail_flags INTERFACE)
# -ffp-contract=off: a fused multiply-add must be written, never guessed, or results would differ
# between compilers and between code paths that have to agree bit for bit.
target_compile_options(foresail_flags INTERFACE
  -Wall -Wextra -Wshadow -Wno-missing-field-initializers -Werror -ffp-contract=off
  $<$<CONFIG:Debug>:-O1>)
# g++ 12 reports these inside std::string and other libraries' templates at -O3 (GCC bugs 105329,
# 105651, 105562).
target_compile_options(foresail_flags INTERFACE
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict -Wno-maybe-uninitialized -Wno-array-bounds -Wno-stringop-overflow>)
if(FORESAIL_SANITIZE)
  target_compile_options(foresail_flags INTERFACE -fsanitize=${FORESAIL_SANITIZE}
    -fno-sanitize-recover=all -fno-omit-frame-pointer)
  target_link_options(foresail_flags INTERFACE -fsanitize=${FORESAIL_SANITIZE})
endif()
target_include_directories(foresail_flags INTERFACE ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/include)

# foresail_part(base DEPENDS tensor ...): one static library per folder of src/, every .cc in it and
# in the SUBFOLDERS that are named.
function(foresail_part name)
  cmake_parse_arguments(ARG "" "" "DEPENDS;LINK;SUBFOLDERS" ${ARGN})
  list(TRANSFORM ARG_SUBFOLDERS APPEND "/*.cc" OUTPUT_VARIABLE globs)
  file(GLOB sources CONFIGURE_DEPENDS *.cc ${globs})
  if(NOT sources)
    return()
  endif()
  add_library(foresail_${name} STATIC ${sources})
  target_link_libraries(foresail_${name} PUBLIC foresail_flags ${ARG_LINK})
  foreach(dep ${ARG_DEPENDS})
    if(TARGET foresail_${dep})
      target_link_libraries(foresail_${name} PUBLIC foresail_${dep})
    endif()
  endforeach()
endfunction()

# Compiles the *_test.cc of a target four at a time: what they include costs more than they do
# themselves. So names in the anonymous namespaces of one folder are all different.
function(foresail_compile_together target)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources EXCLUDE REGEX "_test\\.cc$")
  set_source_files_properties(${sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 4)
endfunction()

# foresail_test_folder(unit/base LIBS foresail_base): one test binary per folder, every *_test.cc.
function(foresail_test_folder folder)
  cmake_parse_arguments(ARG "" "" "LIBS" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cc)
  if(NOT sources)
    return()
  endif()
  string(REPLACE "/" "_" name ${folder})
  add_executable(${name}_test ${sources})
  target_link_libraries(${name}_test PRIVATE ${ARG_LIBS} GTest::gtest GTest::gmock GTest::gtest_main)
  target_include_directories(${name}_test PRIVATE ${CMAKE_SOURCE_DIR}/tests)
  target_compile_definitions(${name}_test PRIVATE
    FORESAIL_SOURCE_DIR="${CMAKE_SOURCE_DIR}" FORESAIL_BIN_DIR="${CMAKE_BINARY_DIR}/bin")
  # What tests spend their time in is the code under test; -O3 of their own doubles the compiling.
  target_compile_options(${name}_test PRIVATE $<$<CONFIG:Release>:-O1>)
  foresail_compile_together(${name}_test)
  gtest_discover_tests(${name}_test DISCOVERY_TIMEOUT 60 PROPERTIES TIMEOUT 600)
endfunction()
