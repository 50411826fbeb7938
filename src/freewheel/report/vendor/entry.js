// What the page uses of Apache ECharts; README.md says how the bundle is made of it.
import * as core from "echarts/core";
import { BarChart, CustomChart, LineChart } from "echarts/charts";
import { GridComponent, LegendComponent, TooltipComponent } from "echarts/components";
import { CanvasRenderer, SVGRenderer } from "echarts/renderers";

core.use([
  BarChart, CustomChart, LineChart,
  GridComponent, LegendComponent, TooltipComponent,
  CanvasRenderer, SVGRenderer,
]);

export const init = core.init;
