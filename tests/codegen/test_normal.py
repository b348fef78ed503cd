"""What a builder may choose is hidden; what a kernel does is not."""

from __future__ import annotations

import pytest

from tests.codegen.normal import normalised, unmarked

MODULE = """
declare float @llvm.fabs.f32(float)
declare void @tile.4_0123456789abcdef0123(ptr, i64)
; a comment
define void @kernel_0123456789abcdef0123(ptr %y, i64 %n) nounwind {
entry:
  %some = icmp slt i64 0, %n  ; another
  br i1 %some, label %head, label %after, !llvm.loop !640

head:
  %i = phi i64 [ 0, %entry ], [ %next, %head ]
  %next = add nuw nsw i64 %i, 1
  call void @tile.4_0123456789abcdef0123(ptr %y, i64 %i)
  %z = call float asm "mul $0, %x ; !9", "=v"()
  br label %after
after:
  ret void
}
!640 = distinct !{!640, !641}
!641 = !{!"llvm.loop.vectorize.width", i32 1}
"""
RENAMED = """
declare void @tile.4_aaaaaaaaaaaaaaaaaaaa(ptr, i64)
define void @kernel_bbbbbbbbbbbbbbbbbbbb(ptr %a0, i64 %a1) nounwind {
b0:
    %v1 = icmp slt i64 0, %a1
    br i1 %v1, label %b1, label %b.2, !llvm.loop !7
b1:
    %v2 = phi i64 [ 0, %b0 ], [ %v3, %b1 ]
    %v3 = add nuw nsw i64 %v2, 1
    call void @tile.4_aaaaaaaaaaaaaaaaaaaa(ptr %a0, i64 %v2)
    %v4 = call float asm "mul $0, %x ; !9", "=v"()
    br label %b.2
b.2:
    ret void
}
declare float @llvm.fabs.f32(float)
declare float @llvm.fabs.f32(float)
!7 = distinct !{!7, !3}
!3 = !{!"llvm.loop.vectorize.width", i32 1}
"""


def test_names_hashes_comments_and_the_order_of_declarations_are_hidden() -> None:
    assert normalised(MODULE) == normalised(RENAMED)
    assert unmarked("@contract_0123456789abcdef0123.epilogue") == "@contract.epilogue"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("add nuw nsw i64 %i, 1", "add nuw nsw i64 %i, 2"),
        ("add nuw nsw", "add nsw"),
        ("add nuw nsw i64 %i", "add nuw nsw i64 %n"),
        ("label %head, label %after", "label %after, label %head"),
        ("[ %next, %head ]", "[ %i, %head ]"),
        ("tile.4", "tile.8"),
        ('"mul $0, %x', '"mul $0, %y'),
        ("i32 1}", "i32 2}"),
        (", !llvm.loop !640", ""),
        ("ptr %y, i64 %n)", "ptr noalias %y, i64 %n)"),
        ("declare float @llvm.fabs.f32(float)\n", ""),
        ("  br label %after\n", "  %w = load i64, ptr %y\n  br label %after\n"),
    ],
)
def test_other_instructions_are_not_hidden(old: str, new: str) -> None:
    assert old in MODULE
    assert normalised(MODULE) != normalised(MODULE.replace(old, new))


def test_the_order_of_instructions_is_not_hidden() -> None:
    ordered = "define void @f(ptr %x) {\n  store i8 1, ptr %x\n  store i8 2, ptr %x\n  ret void\n}"
    other = "define void @f(ptr %x) {\n  store i8 2, ptr %x\n  store i8 1, ptr %x\n  ret void\n}"
    assert normalised(ordered) != normalised(other)


def test_each_function_numbers_its_own_values() -> None:
    one = "define i32 @f(i32 %x) {\n  ret i32 %x\n}\n"
    other = one.replace("@f", "@g")
    assert normalised(one + other) == normalised(one + other.replace("%x", "%y"))
