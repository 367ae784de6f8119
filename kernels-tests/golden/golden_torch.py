# Golden references from torch for fixed seeds -> one .safetensors (+ .npz) per case and an index.json.
# usage: python golden_torch.py OUTDIR      Every tensor is f32 C-contiguous; masks are u8 (1 = may attend).
import sys,os,json,math,torch,torch.nn as nn,torch.nn.functional as F,numpy as np
from safetensors.torch import save_file
out=sys.argv[1] if len(sys.argv)>1 else 'golden'; os.makedirs(out,exist_ok=True)
torch.set_num_threads(1); torch.use_deterministic_algorithms(True); torch.set_default_dtype(torch.float64 if os.environ.get('F64') else torch.float32)
IDX={}
def save(name,meta,**t):
    t={k:v.detach().to(torch.float32).contiguous().clone() if v.is_floating_point() else v.detach().contiguous().clone() for k,v in t.items()}
    save_file(t,f'{out}/{name}.safetensors',metadata={'torch':torch.__version__,**{k:str(v) for k,v in meta.items()}})
    np.savez(f'{out}/{name}.npz',**{k:v.numpy() for k,v in t.items()})
    IDX[name]={**meta,'tensors':{k:list(v.shape) for k,v in t.items()}}
def params(m,prefix='p.'): return {prefix+k:v for k,v in m.named_parameters()}
def grads(m,prefix='g.'): return {prefix+k:v.grad for k,v in m.named_parameters() if v.grad is not None}
# ---- LayerNorm / softmax / gelu / cross entropy
for i,(r,c) in enumerate([(1,1),(3,7),(5,64),(4,257),(2,1024)]):
    torch.manual_seed(100+i); x=torch.randn(r,c)*3+1; x.requires_grad_(); ln=nn.LayerNorm(c,eps=1e-5)
    nn.init.normal_(ln.weight,1,.2); nn.init.normal_(ln.bias,0,.2); dy=torch.randn(r,c); y=ln(x); y.backward(dy)
    save(f'layernorm_{r}x{c}',{'eps':1e-5},x=x,dy=dy,y=y,dx=x.grad,**params(ln),**grads(ln))
    z=torch.randn(r,c)*4; z.requires_grad_(); s=torch.softmax(z,-1); s.backward(dy); save(f'softmax_{r}x{c}',{},x=z,dy=dy,y=s,dx=z.grad)
for act in ('none','tanh'):
    torch.manual_seed(7); x=torch.cat([torch.linspace(-8,8,129),torch.randn(127)*3]).requires_grad_(); dy=torch.randn(256); y=F.gelu(x,approximate=act); y.backward(dy); save(f'gelu_{act}',{},x=x,dy=dy,y=y,dx=x.grad)
for ls in (0.,.1):
    torch.manual_seed(8); z=(torch.randn(12,37)*2).requires_grad_(); t=torch.randint(0,37,(12,)); t[3]=0; t[9]=0
    l=F.cross_entropy(z,t,ignore_index=0,label_smoothing=ls); l.backward(); save(f'cross_entropy_ls{ls}',{'ignore_index':0,'label_smoothing':ls,'reduction':'mean over non-ignored'},logits=z,target=t,loss=l.reshape(1),dlogits=z.grad)
# ---- scaled_dot_product_attention fwd+bwd (math backend), none / causal / key-padding
from torch.nn.attention import sdpa_kernel,SDPBackend
for i,(B,H,Sq,Sk,D,mode) in enumerate([(2,2,5,5,8,'none'),(2,2,5,5,8,'causal'),(1,3,7,11,16,'none'),(2,4,33,65,64,'pad'),(1,2,130,130,32,'causal'),(2,1,1,17,64,'pad')]):
    torch.manual_seed(200+i); q,k,v=torch.randn(B,H,Sq,D),torch.randn(B,H,Sk,D),torch.randn(B,H,Sk,D); [t.requires_grad_() for t in (q,k,v)]; dO=torch.randn(B,H,Sq,D)
    m=None; ex={}
    if mode=='pad':
        lens=torch.tensor([max(1,Sk-3*(b+1)) for b in range(B)]); m=(torch.arange(Sk)[None]<lens[:,None])[:,None,None,:]; ex={'key_mask':m[:,0,0].to(torch.uint8)}
    with sdpa_kernel(SDPBackend.MATH): o=F.scaled_dot_product_attention(q,k,v,attn_mask=m,is_causal=mode=='causal')
    o.backward(dO); save(f'sdpa_{i}_{mode}',{'scale':1/math.sqrt(D),'mode':mode},q=q,k=k,v=v,do=dO,o=o,dq=q.grad,dk=k.grad,dv=v.grad,**ex)
# ---- nn.MultiheadAttention (packed in_proj_weight [3d,d]: rows q|k|v) self and cross
for i,(d,h,B,Sq,Sk) in enumerate([(16,4,2,6,6),(32,4,2,5,9)]):
    torch.manual_seed(300+i); mha=nn.MultiheadAttention(d,h,batch_first=True); nn.init.normal_(mha.in_proj_bias,0,.1); nn.init.normal_(mha.out_proj.bias,0,.1)
    x=torch.randn(B,Sq,d,requires_grad=True); y=x if Sq==Sk else torch.randn(B,Sk,d,requires_grad=True); dy=torch.randn(B,Sq,d)
    o,w=mha(x,y,y,need_weights=True,average_attn_weights=False); o.backward(dy)
    save(f'mha_{i}',{'d':d,'heads':h},x=x,y=y,do=dy,o=o,attn=w,dx=x.grad,**({} if y is x else {'dy_mem':y.grad}),**params(mha),**grads(mha))
# ---- nn.Transformer encoder-decoder, post- and pre-norm, relu and gelu, with tgt causal + src key padding; one SGD/Adam step too
for i,(nf,act) in enumerate([(False,'relu'),(True,'gelu')]):
    torch.manual_seed(400+i); d,h,L,ff,B,S,T,V=32,4,2,64,3,9,7,50
    tr=nn.Transformer(d,h,L,L,ff,0.0,activation=act,batch_first=True,norm_first=nf); emb=nn.Embedding(V,d,padding_idx=0); head=nn.Linear(d,V)
    for n,p in tr.named_parameters():
        if p.dim()==1: nn.init.normal_(p,1. if 'norm' in n and 'weight' in n else 0.,.1)
    src=torch.randint(3,V,(B,S)); tgt=torch.randint(3,V,(B,T+1)); src[1,6:]=0; src[2,3:]=0; tgt[2,5:]=0
    kp=src==0; cm=torch.triu(torch.full((T,T),float('-inf')),1)
    pe=torch.zeros(64,d); p=torch.arange(64)[:,None]/torch.pow(10000.,torch.arange(0,d,2)/d); pe[:,0::2]=p.sin(); pe[:,1::2]=p.cos()
    e=lambda t: emb(t)*math.sqrt(d)+pe[:t.size(1)]
    mem=tr.encoder(e(src),src_key_padding_mask=kp); dec=tr.decoder(e(tgt[:,:-1]),mem,tgt_mask=cm,memory_key_padding_mask=kp); logits=head(dec)
    loss=F.cross_entropy(logits.flatten(0,1),tgt[:,1:].flatten(),ignore_index=0,label_smoothing=.1); loss.backward()
    P={**params(tr,'p.tr.'),**params(emb,'p.emb.'),**params(head,'p.head.')}; P={k:v.detach().clone() for k,v in P.items()}
    G={**grads(tr,'g.tr.'),**grads(emb,'g.emb.'),**grads(head,'g.head.')}; G={k:v.detach().clone() for k,v in G.items()}
    mods=[tr,emb,head]; opt=torch.optim.Adam([q for m in mods for q in m.parameters()],lr=1e-2,betas=(.9,.98),eps=1e-9); opt.step()
    A={**params(tr,'adam1.tr.'),**params(emb,'adam1.emb.'),**params(head,'adam1.head.')}
    save(f'transformer_{"pre" if nf else "post"}norm_{act}',{'d':d,'heads':h,'layers':L,'ff':ff,'norm_first':nf,'act':act,'eps':1e-5,'final_norm':True,'pe':'sinusoidal interleaved','lr':1e-2},src=src,tgt=tgt,pe=pe,memory=mem,dec=dec,logits=logits,loss=loss.reshape(1),**P,**G,**A)
# ---- nn.TransformerEncoder (BERT-like)
torch.manual_seed(500); el=nn.TransformerEncoder(nn.TransformerEncoderLayer(24,3,48,0.0,activation='gelu',batch_first=True),2,enable_nested_tensor=False); el.train()
x=torch.randn(2,6,24,requires_grad=True); kp=torch.tensor([[0]*6,[0,0,0,1,1,1]],dtype=torch.bool); y=el(x,src_key_padding_mask=kp); dy=torch.randn_like(y); dy[1,3:]=0; y.backward(dy)
save('encoder_gelu_pad',{'note':'dy is 0 at padded positions; ignore y there'},x=x,pad=kp.to(torch.uint8),y=y,dy=dy,dx=x.grad,**params(el),**grads(el))
json.dump(IDX,open(f'{out}/index.json','w'),indent=1); print(len(IDX),'cases ->',out, sum(os.path.getsize(f'{out}/{f}') for f in os.listdir(out))//1024,'KiB')
