import json, time
from .works import *
from .remains import *
from .sqsh import *
def test_p(box_plain, image_layouts, push_images):
    d = push_images(box_plain)
    for n,k in (("client","client"),("serving","serving"),("nopython","generic"),("static","generic"),("nopython","client"),("static","client")):
        t0=time.time()
        t=import_task(box_plain, f"{box_plain.registry}/images/{n}:latest@{d[n]}", n, k)
        try:
            print(json.dumps(t.run().model_dump(mode="json"),indent=1))
        except Exception as e:
            print("ERR",type(e),getattr(e,"reason",None),e)
        print("took",time.time()-t0, left_by(box_plain,t), t.lines[:3])
    t0=time.time(); tree=tree_of(image_layouts["client"]); print("tree",time.time()-t0)
    p=squash(tree, place(box_plain,"client")); print("squash",time.time()-t0, p.stat())
    t=inspect_task(box_plain,p); print(t.run().inspection, time.time()-t0)
    t=inspect_task(box_plain,p); t.begin(); t.reaches("hash"); print(box_plain.as_root(["ps","-eo","pid,ppid,pgid,sid,user,args"]).stdout); t.wait()
