define void @dot(ptr noalias nocapture readonly %args, i64 %part) nounwind {
entry:
  %v1 = getelementptr ptr, ptr %args, i64 0
  %v2 = load ptr, ptr %v1, align 8
  %v3 = getelementptr ptr, ptr %args, i64 1
  %v4 = load ptr, ptr %v3, align 8
  %v5 = getelementptr ptr, ptr %args, i64 2
  %v6 = load ptr, ptr %v5, align 8
  br label %loop7
loop7:
  %i8 = phi i64 [ 0, %entry ], [ %v21, %loop7 ]
  %acc9 = phi <8 x i32> [ splat (i32 0), %entry ], [ %v20, %loop7 ]
  %v10 = mul nsw i64 %i8, 2
  %v11 = getelementptr i16, ptr %v2, i64 %v10
  %v16 = mul nsw i64 %i8, 16
  %v17 = getelementptr i16, ptr %v4, i64 %v16
  %v12 = load i32, ptr %v11, align 2
  %v13 = insertelement <8 x i32> poison, i32 %v12, i64 0
  %v14 = shufflevector <8 x i32> %v13, <8 x i32> poison, <8 x i32> zeroinitializer
  %v15 = bitcast <8 x i32> %v14 to <16 x i16>
  %v18 = load <16 x i16>, ptr %v17, align 2
  %v19 = call <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16> %v15, <16 x i16> %v18)
  %v20 = add <8 x i32> %acc9, %v19
  %v21 = add nuw nsw i64 %i8, 1
  %v22 = icmp ult i64 %v21, 3
  br i1 %v22, label %loop7, label %loop7.exit
loop7.exit:
  store <8 x i32> %v20, ptr %v6, align 4
  ret void
}
declare <8 x i32> @llvm.x86.avx2.pmadd.wd(<16 x i16>, <16 x i16>)
