#include "report/page/sections.h"

namespace mnist_train::report {

const char* const kStyle = R"css(
:root{color-scheme:light dark;--small:13px;--behind:var(--page);--page:#fff;--panel:#f6f7f9;--ink:#1b2129;--soft:#59636f;--line:#d5dae1;--grid:#e6e9ee;
--good:#15803d;--bad:#b42318;--warn:#9a5b00;--link:#1d4ed8;--heat:220,60,20;--shade:rgba(27,33,41,.3);
--c0:#1d5fd6;--c1:#c2410c;--c2:#0b7a55;--c3:#8b2fc9;--c4:#8a6100;--c5:#0e7490;--c6:#be185d;--c7:#4b5563;
--a0:#c98a00;--a1:#1d5fd6;--a2:#8b2fc9;--a3:#0b8a5f;--a4:#c2410c;--a5:#be185d;--a6:#64748b;--a7:#b3bcc8}
@media (prefers-color-scheme:dark){:root{--page:#12161c;--panel:#1b212a;--ink:#e6eaf0;--soft:#9ba6b4;--line:#39424f;--grid:#29313c;
--good:#4ade80;--bad:#ff8a7a;--warn:#f5b74e;--link:#8ab4ff;--heat:255,110,70;--shade:rgba(0,0,0,.8);
--c0:#6ea3ff;--c1:#ff9255;--c2:#3fcf9a;--c3:#c993ff;--c4:#e0b23c;--c5:#4cc4dd;--c6:#ff7ab5;--c7:#aab4c0;
--a0:#e0b23c;--a1:#5b93f5;--a2:#b57bf0;--a3:#35b988;--a4:#f07f45;--a5:#f0659f;--a6:#8695a8;--a7:#4d5866}}
*{box-sizing:border-box}
body{margin:0;background:var(--page);color:var(--ink);font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif}
main,footer{max-width:1240px;margin:0 auto;padding:0 16px}
header{padding-top:20px}
h1{font-size:1.5rem;line-height:1.3;margin:0 0 .5rem;overflow-wrap:anywhere}
h2{font-size:1.25rem;margin:2.5rem 0 .25rem;padding-top:.75rem;border-top:1px solid var(--line)}
h3{font-size:1.05rem;margin:1.75rem 0 .25rem}
h4{font-size:.95rem;margin:1rem 0 .25rem}
p{margin:.25rem 0 .75rem;max-width:75ch}
.lead{font-size:1.05rem}
a{color:var(--link)}
:focus-visible{outline:2px solid var(--link);outline-offset:2px;border-radius:3px}
nav{display:flex;flex-wrap:wrap;gap:.25rem 1.25rem;margin:1rem 0 0}
nav a{padding:.25rem 0}
.soft,footer{color:var(--soft)}
footer{font-size:.85rem;padding-top:2rem;padding-bottom:2rem}
.good{color:var(--good)}.bad{color:var(--bad)}
td.good,td.bad{font-weight:600}
.status{display:inline-block;vertical-align:middle;font-size:.8rem;font-weight:600;border:1px solid currentColor;border-radius:99px;padding:.1rem .7rem;color:var(--soft)}
.status.finished{color:var(--good)}.status.running{color:var(--link)}.status.failed{color:var(--bad)}.status.stopped,.status.interrupted{color:var(--warn)}
#live:empty{display:none}
#live button{margin-left:.5rem}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:10px;margin:.75rem 0 0}
.tile{background:var(--panel);border:1px solid var(--line);border-radius:10px;padding:10px 14px}
.tile dt{font-size:.8rem;color:var(--soft)}
.tile dd{margin:0;font-size:1.35rem;font-weight:650;line-height:1.3;font-variant-numeric:tabular-nums}
.tile dd.soft{font-size:.8rem;font-weight:400}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(360px,100%),1fr));gap:14px;margin:.75rem 0}
.pair{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(500px,100%),1fr));gap:14px;margin:.75rem 0;align-items:start}
figure{margin:0;background:var(--panel);border:1px solid var(--line);border-radius:10px;padding:12px 12px 8px;min-width:0;--behind:var(--panel)}
figure.full{margin:14px 0}
figcaption{font-weight:600;font-size:.95rem}
figure p{font-size:var(--small);margin:.15rem 0 .5rem}
svg{display:block;width:100%;height:auto}
.chart>svg{max-width:360px;margin:0 auto;touch-action:pan-y;cursor:crosshair}
.at{font-weight:400;font-size:var(--small);color:var(--soft);float:right}
.unseen{fill:none;stroke:none}.cursor{stroke:var(--soft);stroke-dasharray:3 3;fill:none}.point{fill:none;stroke:var(--ink);stroke-width:1.5}
.chart .legend{min-height:1.5em}
.legend{list-style:none;display:flex;flex-wrap:wrap;gap:.1rem 1rem;margin:.25rem 0 .35rem;padding:0;font-size:var(--small)}
.legend li{display:flex;align-items:center;gap:.3rem}.legend b{font-variant-numeric:tabular-nums}
svg.key{display:inline-block;width:26px;height:10px;flex:none;vertical-align:middle;margin-right:.35rem}
svg.square{width:10px;margin-right:.2rem}
.grid{stroke:var(--grid);fill:none}.axis{stroke:var(--line);fill:none}
.tick{fill:var(--soft);font-size:13px}.end{text-anchor:end}.mid{text-anchor:middle}
.line{fill:none;stroke-width:2;stroke-linejoin:round;stroke-linecap:round}
.faint{opacity:.3;stroke-width:1;stroke-dasharray:none!important}
path.c0{stroke:var(--c0)}path.c1{stroke:var(--c1);stroke-dasharray:7 4}path.c2{stroke:var(--c2);stroke-dasharray:2 4}path.c3{stroke:var(--c3);stroke-dasharray:9 3 2 3}
path.c4{stroke:var(--c4)}path.c5{stroke:var(--c5);stroke-dasharray:7 4}path.c6{stroke:var(--c6);stroke-dasharray:2 4}path.c7{stroke:var(--c7);stroke-dasharray:9 3 2 3}
.dot.c0{fill:var(--c0)}.dot.c1{fill:var(--c1)}.dot.c2{fill:var(--c2)}.dot.c3{fill:var(--c3)}.dot.c4{fill:var(--c4)}.dot.c5{fill:var(--c5)}.dot.c6{fill:var(--c6)}.dot.c7{fill:var(--c7)}
.a0{fill:var(--a0)}.a1{fill:var(--a1)}.a2{fill:var(--a2)}.a3{fill:var(--a3)}.a4{fill:var(--a4)}.a5{fill:var(--a5)}.a6{fill:var(--a6)}.a7{fill:var(--a7)}
svg.bar{height:18px;border-radius:4px;background:var(--grid);margin:.25rem 0}
td>svg.bar{height:12px;border-radius:3px;min-width:120px;margin:0}.phone{display:none}
figure.fit{width:fit-content;max-width:100%;min-width:min(100%,480px)}
.scroll{overflow-x:auto;max-width:100%;background:linear-gradient(to right,var(--behind) 30%,transparent) left/36px 100% local,linear-gradient(to left,var(--behind) 30%,transparent) right/36px 100% local,
linear-gradient(to right,var(--shade),transparent) left/10px 100%,linear-gradient(to left,var(--shade),transparent) right/10px 100%;background-repeat:no-repeat}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
th,td{padding:.22rem .55rem;text-align:left}
thead th{color:var(--soft);font-weight:500;vertical-align:bottom;font-size:var(--small)}
figure table{font-size:var(--small)}
tbody tr{border-top:1px solid var(--grid)}
.numbers td,.numbers thead th{text-align:right}
.numbers thead th:first-child,.numbers th[scope=row]{text-align:left}
.numbers th[scope=row]{font-weight:600}
.numbers td{white-space:nowrap}
figure .numbers{width:100%}
.numbers.pairs td:nth-child(2),.numbers.pairs th:nth-child(2){text-align:left}
.best{color:var(--good);font-weight:600}
.classes th,.classes td{padding:.24rem .4rem}
.dots{width:38%;min-width:80px}svg.dots{overflow:visible;height:20px;width:100%;min-width:0}
.dots path{vector-effect:non-scaling-stroke;fill:none}.track{stroke:var(--line)}.mean{stroke:var(--soft);stroke-dasharray:2 3}
.value{stroke:var(--c0);stroke-width:10;stroke-linecap:round}.value.low{stroke:var(--bad)}
.scale{display:flex;justify-content:space-between}
.matrix{width:100%}
.matrix th,.matrix td{padding:.28rem 0;text-align:center;border:1px solid var(--panel);color:var(--ink);min-width:1.9rem;height:1.9rem}
.matrix th{color:var(--soft);font-weight:600}
.matrix tbody tr{border:0}
.matrix a{display:block;margin:-.28rem 0;padding:.28rem 0;color:inherit;text-decoration:none}
.matrix a:hover,.matrix a.chosen{outline:2px solid var(--link);outline-offset:-2px;border-radius:3px}
.named th[scope=row]{text-align:left;font-weight:500;padding-right:.5rem;overflow-wrap:anywhere;min-width:5rem}
.matrix.named thead th{text-align:center;vertical-align:bottom}
.matrix.named thead span{writing-mode:vertical-rl;transform:rotate(180deg);display:inline-block;max-height:8rem;overflow:hidden;white-space:nowrap;text-overflow:ellipsis;font-weight:500}
#as-percent:checked~.scroll .n,#as-percent:not(:checked)~.scroll .p{display:none}
input[type=radio]{accent-color:var(--link);margin:.2rem .35rem .5rem 0}
figure label{font-size:var(--small)}
.matrix .right{background:rgba(30,150,90,.22);font-weight:600}
.e0{color:var(--soft)!important}.e1{background:rgba(var(--heat),.08)}.e2{background:rgba(var(--heat),.14)}.e3{background:rgba(var(--heat),.2)}
.e4{background:rgba(var(--heat),.27)}.e5{background:rgba(var(--heat),.34)}.e6{background:rgba(var(--heat),.41)}.e7{background:rgba(var(--heat),.48)}.e8{background:rgba(var(--heat),.55)}.e9{background:rgba(var(--heat),.62);font-weight:600}
.thumbs{list-style:none;margin:.75rem 0;padding:0;display:grid;grid-template-columns:repeat(12,minmax(0,1fr));gap:14px 8px;font-size:var(--small)}
.thumbs li{display:flex;flex-direction:column;overflow-wrap:anywhere;line-height:1.4;scroll-margin-top:1rem}
.thumbs .soft{display:flex;flex-wrap:wrap;gap:0 .5em}.thumbs .soft span{white-space:nowrap}
.thumbs li[hidden]{display:none}
.thumbs li:target img{outline:3px solid var(--link)}
.thumbs img,.omitted{width:100%;max-width:92px;aspect-ratio:1;object-fit:contain;image-rendering:pixelated;background:#000;border-radius:5px;margin-bottom:3px}
.omitted{display:grid;place-items:center;background:var(--panel)}
#filters{display:flex;flex-wrap:wrap;gap:.4rem .9rem;align-items:center}#filters:empty{display:none}
.settings td,.settings th{vertical-align:top;overflow-wrap:anywhere}
.settings th{font-weight:400}.settings th code{overflow-wrap:normal;white-space:nowrap}.settings td{min-width:6rem}
details{margin:.75rem 0}
summary{cursor:pointer;padding:.3rem 0;font-weight:600;color:var(--link)}
pre{background:var(--panel);border:1px solid var(--line);border-radius:10px;padding:12px;overflow:auto;font-size:.82rem;max-height:70vh}
code{font-size:.88em;overflow-wrap:anywhere}
.facts{display:grid;gap:.3rem;margin:.5rem 0}
.facts div{display:grid;grid-template-columns:9rem 1fr;gap:.5rem}
.params{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(260px,100%),1fr));gap:.1rem 1.5rem;margin:.5rem 0;font-size:.9rem}
.params div{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 .75rem;border-bottom:1px solid var(--grid);padding:.2rem 0}
.params dd{margin:0;overflow-wrap:anywhere}
.facts dt{color:var(--soft)}.facts dd{margin:0;overflow-wrap:anywhere}
.hidden{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
select,button{font:inherit;font-size:.85rem;padding:.15rem .5rem;background:var(--page);color:var(--ink);border:1px solid var(--line);border-radius:6px}
label{margin-right:.75rem;white-space:nowrap}#filters label{display:flex;gap:.4rem;align-items:center;max-width:100%;margin:0}#filters select{min-width:0;max-width:18rem}
.thumbs.wordy{grid-template-columns:repeat(8,minmax(0,1fr))}
@media (max-width:1000px){.thumbs{grid-template-columns:repeat(8,minmax(0,1fr))}.thumbs.wordy{grid-template-columns:repeat(6,minmax(0,1fr))}}
@media (max-width:760px){.thumbs{grid-template-columns:repeat(6,minmax(0,1fr))}.thumbs.wordy{grid-template-columns:repeat(4,minmax(0,1fr))}}
@media (max-width:560px){.thumbs{grid-template-columns:repeat(4,minmax(0,1fr))}.thumbs.wordy{grid-template-columns:repeat(3,minmax(0,1fr))}
.phone{display:inline}.stack,.stack tbody{display:block;width:100%}.stack thead{display:none}
.stack tr{display:grid;grid-template-columns:1fr 1fr;gap:0 1rem;padding:.35rem 0}.stack th[scope=row]{grid-column:1/-1}
.stack td{display:flex;justify-content:space-between;gap:.5rem;white-space:nowrap}.stack td::before{content:attr(data-label);white-space:normal;color:var(--soft);text-align:left}.stack td:has(>svg){grid-column:1/-1;align-items:center}
th,td{padding:.2rem .35rem}.facts div{grid-template-columns:1fr;gap:0}
figure{padding:10px 8px 6px}.tile dd{font-size:1.15rem}.tiles{grid-template-columns:1fr 1fr}.classes th,.classes td{padding:.24rem .2rem}
.dots{min-width:46px}.named .dots{display:none}.matrix th,.matrix td{min-width:1.7rem}.named th[scope=row]{min-width:4rem}}
@media (prefers-reduced-motion:no-preference){html{scroll-behavior:smooth}}
@media print{.status,nav,#live,#filters{display:none}details:not([open])>:not(summary){display:none}}
)css";

}  // namespace mnist_train::report
