"""Methods of decoupled learning, one file each, and their registry."""

from hocket.methods.adl import ADL as ADL
from hocket.methods.bp import BP as BP
from hocket.methods.ddg import DDG as DDG
from hocket.methods.dgl import DGL as DGL
from hocket.methods.dgl_async import DGLAsync as DGLAsync
from hocket.methods.dni import DNI as DNI
from hocket.methods.dsp import DSP as DSP
from hocket.methods.fdg import FDG as FDG
from hocket.methods.fr import FR as FR
from hocket.methods.gpipe import GPipe as GPipe
from hocket.methods.method import Method as Method
from hocket.methods.one_f_one_b import OneFOneB as OneFOneB
from hocket.methods.paci import PACI as PACI
from hocket.methods.petra import PETRA as PETRA
from hocket.methods.pipedream import PipeDream as PipeDream
from hocket.methods.pipedream_2bw import PipeDream2BW as PipeDream2BW
from hocket.methods.registry import METHODS as METHODS
from hocket.methods.registry import as_method as as_method
from hocket.methods.registry import build_method as build_method
from hocket.methods.registry import method_options as method_options
from hocket.methods.registry import parse_method as parse_method
from hocket.methods.simulated.delays import with_extra_delay as with_extra_delay
from hocket.methods.simulated.delays import with_staleness as with_staleness
