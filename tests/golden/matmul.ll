define void @matmul(ptr noalias nocapture readonly %args, i64 %part) nounwind {
entry:
  %v1 = getelementptr ptr, ptr %args, i64 0
  %v2 = load ptr, ptr %v1, align 8
  %v3 = getelementptr ptr, ptr %args, i64 1
  %v4 = load ptr, ptr %v3, align 8
  %v5 = getelementptr ptr, ptr %args, i64 2
  %v6 = load ptr, ptr %v5, align 8
  %v11 = mul nsw i64 %part, 12
  %v12 = getelementptr float, ptr %v2, i64 %v11
  %v30 = mul nsw i64 %part, 16
  %v31 = getelementptr float, ptr %v6, i64 %v30
  br label %loop7
loop7:
  %i8 = phi i64 [ 0, %entry ], [ %v26, %loop7 ]
  %acc9 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v20, %loop7 ]
  %acc10 = phi <8 x float> [ splat (float 0x0000000000000000), %entry ], [ %v25, %loop7 ]
  %v13 = getelementptr float, ptr %v12, i64 %i8
  %v15 = mul nsw i64 %i8, 8
  %v16 = getelementptr float, ptr %v4, i64 %v15
  %v14 = load float, ptr %v13, align 4
  %v17 = load <8 x float>, ptr %v16, align 4
  %v18 = insertelement <8 x float> poison, float %v14, i64 0
  %v19 = shufflevector <8 x float> %v18, <8 x float> poison, <8 x i32> zeroinitializer
  %v20 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v19, <8 x float> %v17, <8 x float> %acc9)
  %v21 = getelementptr float, ptr %v13, i64 6
  %v22 = load float, ptr %v21, align 4
  %v23 = insertelement <8 x float> poison, float %v22, i64 0
  %v24 = shufflevector <8 x float> %v23, <8 x float> poison, <8 x i32> zeroinitializer
  %v25 = call <8 x float> @llvm.fma.v8f32(<8 x float> %v24, <8 x float> %v17, <8 x float> %acc10)
  %v26 = add nuw nsw i64 %i8, 1
  %v27 = icmp ult i64 %v26, 6
  br i1 %v27, label %loop7, label %loop7.exit
loop7.exit:
  %v28 = fcmp olt <8 x float> %v20, splat (float 0x0000000000000000)
  %v29 = select <8 x i1> %v28, <8 x float> splat (float 0x0000000000000000), <8 x float> %v20
  store <8 x float> %v29, ptr %v31, align 4
  %v32 = fcmp olt <8 x float> %v25, splat (float 0x0000000000000000)
  %v33 = select <8 x i1> %v32, <8 x float> splat (float 0x0000000000000000), <8 x float> %v25
  %v34 = getelementptr float, ptr %v31, i64 8
  store <8 x float> %v33, ptr %v34, align 4
  ret void
}
declare <8 x float> @llvm.fma.v8f32(<8 x float>, <8 x float>, <8 x float>)
